// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	current "github.com/containernetworking/cni/pkg/types/100"
	vn "github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/tables/cnifile"
)

// inspect finds what there is to tell of a pod's interface.
func inspect(args *skel.CmdArgs, pod podRef, result *current.Result) (*cnifile.Attachment, error) {
	a := &cnifile.Attachment{
		Container: args.ContainerID, IfName: args.IfName,
		Namespace: pod.namespace, Pod: pod.name, UID: pod.uid,
		Created: time.Now(), Runtime: parentName(),
	}
	if a.Addrs = addresses(result, args.IfName, args.Netns); len(a.Addrs) == 0 {
		return nil, fmt.Errorf("prevResult has no address of %s", args.IfName)
	}
	inside, err := linkInside(args.Netns, args.IfName)
	if err != nil {
		return nil, err
	}
	a.MAC = inside.Attrs().HardwareAddr.String()
	if inside.Type() != "veth" {
		a.Reason = fmt.Sprintf("%s is no veth but a %s: no program of Sluice's can run at it", args.IfName, inside.Type())
		return a, nil
	}
	outside, err := vn.LinkByIndex(inside.Attrs().ParentIndex)
	if errors.As(err, new(vn.LinkNotFoundError)) || err == nil && outside.Attrs().ParentIndex != inside.Attrs().Index {
		a.Reason = fmt.Sprintf("the other end of %s is not on the node: no program of Sluice's can run at it", args.IfName)
		return a, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look at the other end of %s: %w", args.IfName, err)
	}
	a.Device, a.IfIndex = outside.Attrs().Name, outside.Attrs().Index
	return a, nil
}

// linkInside looks at a device in the pod's network namespace.
func linkInside(path, name string) (vn.Link, error) {
	ns, err := netns.GetFromPath(path)
	if err != nil {
		return nil, fmt.Errorf("open network namespace %s: %w", path, err)
	}
	defer ns.Close()
	h, err := vn.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink in %s: %w", path, err)
	}
	defer h.Close()
	link, err := h.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("look at %s in %s: %w", name, path, err)
	}
	return link, nil
}

// addresses are those of the pod's interface. An address of which the result does
// not say the interface is the pod's.
func addresses(result *current.Result, ifName, sandbox string) (addrs []netip.Addr) {
	for _, ip := range result.IPs {
		if i := ip.Interface; i != nil && *i >= 0 && *i < len(result.Interfaces) {
			if on := result.Interfaces[*i]; on.Name != ifName || on.Sandbox != "" && on.Sandbox != sandbox {
				continue
			}
		}
		if addr, ok := netip.AddrFromSlice(ip.Address.IP); ok {
			addrs = append(addrs, addr.Unmap())
		}
	}
	return addrs
}

// parentName is the name of the process that called the plugin: the runtime.
func parentName() string {
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", os.Getppid()))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(name))
}
