// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	cniversion "github.com/containernetworking/cni/pkg/version"

	"github.com/sluice-net/sluice/tables/cniconf"
	"github.com/sluice-net/sluice/tables/cnifile"
)

// errNotAvailable is the code of the specification for a plugin that cannot serve an
// ADD now. The library has no name for it.
const errNotAvailable uint = 50

// config is the configuration that the runtime passes on standard input.
type config struct {
	types.PluginConf
	cniconf.Config
}

// UnmarshalJSON implements [json.Unmarshaler], which [types.PluginConf] has for
// itself alone.
func (c *config) UnmarshalJSON(data []byte) error {
	type plain types.PluginConf
	if err := json.Unmarshal(data, (*plain)(&c.PluginConf)); err != nil {
		return err
	}
	return json.Unmarshal(data, &c.Config)
}

func parse(args *skel.CmdArgs) (*config, error) {
	c := &config{}
	err := json.Unmarshal(args.StdinData, c)
	if err == nil {
		err = c.Check()
	}
	if err != nil {
		return nil, types.NewError(types.ErrInvalidNetworkConfig, cniconf.Type+": parse configuration",
			err.Error())
	}
	return c, nil
}

// add writes the file of a pod's interface, and returns when all policies of the pod are
// in the kernel, or the pod is held. It prints the result of the previous plugin unchanged.
func add(args *skel.CmdArgs) error {
	c, err := parse(args)
	if err != nil {
		return err
	}
	result, err := previous(c)
	if err != nil {
		return err
	}
	if pod := podOf(args.Args); pod.name != "" { // else it is not a pod of Kubernetes
		a, err := inspect(args, c.Name, pod, result)
		if err != nil {
			return types.NewError(types.ErrInvalidNetNS, cniconf.Type+": look at the pod's interface",
				err.Error())
		}
		if err := enforce(c, a); err != nil {
			return err
		}
	}
	return printPrevious(args, c)
}

// enforce writes the file of an interface and waits for the agent. It fails if the pod's
// policies are not in the kernel in time, and the pod cannot be held either.
func enforce(c *config, a *cnifile.Attachment) error {
	// The agent does this too, but not if it is killed before, nor for an address that is
	// used again at once. Maps of another version's agent, which cannot be read, go with it.
	_ = forget(c.BPFFS, a.Addrs)
	if err := cnifile.Write(c.RunDir, a); err != nil {
		return types.NewError(types.ErrIOFailure,
			cniconf.Type+": tell the agent of pod "+a.Namespace+"/"+a.Pod, err.Error())
	}
	if a.IfIndex == 0 {
		return nil // no program can be attached: the file has the reason
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(c.Timeout))
	defer cancel()
	if err := await(ctx, c, a); err != nil {
		_ = cnifile.Remove(c.RunDir, a.Container, a.IfName) // the runtime also calls DEL
		return types.NewError(types.ErrTryAgainLater,
			fmt.Sprintf("%s: pod %s/%s cannot start yet: no agent of Sluice has put it in force, and none has left what could hold it",
				cniconf.Type, a.Namespace, a.Pod), err.Error())
	}
	return nil
}

// previous parses the result of the previous plugin.
func previous(c *config) (*current.Result, error) {
	raw := c.RawPrevResult
	if raw == nil {
		return nil, types.NewError(types.ErrInvalidNetworkConfig, cniconf.Type+": there is no prevResult",
			"it is a chained plugin, and cannot be the first in a list")
	}
	conf := types.PluginConf{CNIVersion: c.CNIVersion, RawPrevResult: raw}
	if err := cniversion.ParsePrevResult(&conf); err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, cniconf.Type+": parse prevResult",
			err.Error())
	}
	result, err := current.NewResultFromResult(conf.PrevResult)
	if err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, cniconf.Type+": convert prevResult",
			err.Error())
	}
	return result, nil
}

// printPrevious prints the result of the previous plugin unchanged. It adds cniVersion if
// that is missing, as it is in results of old plugins.
func printPrevious(args *skel.CmdArgs, c *config) error {
	var raw struct {
		PrevResult map[string]json.RawMessage `json:"prevResult"`
	}
	if err := json.Unmarshal(args.StdinData, &raw); err != nil {
		return err
	}
	if _, found := raw.PrevResult["cniVersion"]; !found {
		raw.PrevResult["cniVersion"], _ = json.Marshal(c.CNIVersion) // a string cannot fail
	}
	return json.NewEncoder(os.Stdout).Encode(raw.PrevResult)
}

// del removes the file of an interface. It succeeds also if the file, the agent or the
// pod's network namespace does not exist: the runtime must always be able to delete a pod.
func del(args *skel.CmdArgs) error {
	c := &config{}
	if err := json.Unmarshal(args.StdinData, c); err != nil || c.RunDir == "" {
		return nil
	}
	return cnifile.Remove(c.RunDir, args.ContainerID, args.IfName)
}

// check returns an error if an interface has no file, or another device than in its file.
func check(args *skel.CmdArgs) error {
	c, err := parse(args)
	if err != nil {
		return err
	}
	result, err := previous(c)
	if err != nil {
		return err
	}
	pod := podOf(args.Args)
	if pod.name == "" {
		return nil
	}
	told, err := cnifile.Read(c.RunDir, cnifile.FileName(args.ContainerID, args.IfName))
	if err != nil {
		return types.NewError(types.ErrUnknownContainer,
			cniconf.Type+": the agent is not told of the interface", err.Error())
	}
	is, err := inspect(args, c.Name, pod, result)
	if err != nil {
		return types.NewError(types.ErrInvalidNetNS, cniconf.Type+": look at the pod's interface",
			err.Error())
	}
	if len(told.Addrs) == 0 {
		return nil // it was told of no device, and the interface may have an address since
	}
	if is.IfIndex != told.IfIndex || is.Device != told.Device {
		return types.NewError(types.ErrInternal,
			cniconf.Type+": the pod has another device than the agent was told",
			fmt.Sprintf("told %s, index %d; has %s, index %d", told.Device, told.IfIndex, is.Device,
				is.IfIndex))
	}
	return nil
}

// gc removes the files of interfaces of this network that the runtime does not list. The
// runtime calls for GC of each network, and lists the interfaces of that one only.
func gc(args *skel.CmdArgs) error {
	c, err := parse(args)
	if err != nil {
		return err
	}
	valid := map[types.GCAttachment]bool{}
	for _, a := range c.ValidAttachments {
		valid[a] = true
	}
	return cnifile.Collect(c.RunDir, c.Name, func(container, ifName string) bool {
		return valid[types.GCAttachment{ContainerID: container, IfName: ifName}]
	})
}

// status reports whether an ADD would succeed now.
func status(args *skel.CmdArgs) error {
	c, err := parse(args)
	if err != nil {
		return err
	}
	if err := answers(c.Socket); err != nil && !canHold(c.BPFFS) {
		return types.NewError(errNotAvailable,
			cniconf.Type+": no agent of Sluice answers, and none has run since the node booted", err.Error())
	}
	return nil
}

// podRef names a pod, as the runtime does in CNI_ARGS.
type podRef struct{ namespace, name, uid string }

func podOf(args string) (p podRef) {
	for pair := range strings.SplitSeq(args, ";") {
		key, value, _ := strings.Cut(pair, "=")
		switch key {
		case "K8S_POD_NAMESPACE":
			p.namespace = value
		case "K8S_POD_NAME":
			p.name = value
		case "K8S_POD_UID":
			p.uid = value
		}
	}
	return p
}
