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

// inspect collects what the agent has to know of a pod's interface.
func inspect(
	args *skel.CmdArgs, network string, pod podRef, result *current.Result,
) (*cnifile.Attachment, error) {
	a := &cnifile.Attachment{
		Container: args.ContainerID, IfName: args.IfName, Network: network,
		Namespace: pod.namespace, Pod: pod.name, UID: pod.uid,
		Created: time.Now(), Runtime: parentName(),
	}
	ns, err := netns.GetFromPath(args.Netns)
	if err != nil {
		return nil, fmt.Errorf("open network namespace %s: %w", args.Netns, err)
	}
	defer ns.Close()
	inside, own, err := lookInside(ns, args.IfName)
	if err != nil {
		return nil, err
	}
	a.MAC = inside.Attrs().HardwareAddr.String()
	if a.Addrs = addresses(result, args.IfName, args.Netns); len(a.Addrs) == 0 {
		a.Addrs = own // the result may name the sandbox, or the interface, in another way
	}
	if len(a.Addrs) == 0 {
		a.Reason = args.IfName + " has no address: the agent learns of the pod by its status"
		return a, nil
	}
	if inside.Type() != "veth" {
		a.Reason = fmt.Sprintf("%s is no veth but a %s: no program of Sluice's can run at it",
			args.IfName, inside.Type())
		return a, nil
	}
	outside, err := otherEnd(ns, inside)
	if err != nil {
		return nil, fmt.Errorf("look at the other end of %s: %w", args.IfName, err)
	}
	if outside == nil {
		a.Reason = fmt.Sprintf("the other end of %s is not on the node: no program of Sluice's can run at it", args.IfName)
		return a, nil
	}
	a.Device, a.IfIndex = outside.Attrs().Name, outside.Attrs().Index
	return a, nil
}

// lookInside looks up a device in the pod's network namespace, and its global addresses.
func lookInside(ns netns.NsHandle, name string) (link vn.Link, addrs []netip.Addr, err error) {
	h, err := vn.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, nil, fmt.Errorf("open netlink in the pod's network namespace: %w", err)
	}
	defer h.Close()
	if link, err = h.LinkByName(name); err != nil {
		return nil, nil, fmt.Errorf("look at %s in the pod's network namespace: %w", name, err)
	}
	has, err := h.AddrList(link, vn.FAMILY_ALL)
	if err != nil {
		return nil, nil, fmt.Errorf("list addresses of %s in the pod's network namespace: %w", name, err)
	}
	for _, a := range has {
		if addr, ok := netip.AddrFromSlice(a.IP); ok && addr.IsGlobalUnicast() {
			addrs = append(addrs, addr.Unmap())
		}
	}
	return link, addrs, nil
}

// otherEnd returns the node's end of a pod's veth, nil if the other end is not on the
// node. An interface index is of one network namespace only: a device of the node with
// the index of the other end is that end if its own other end is the pod's device, by
// network namespace and index.
func otherEnd(pod netns.NsHandle, inside vn.Link) (vn.Link, error) {
	outside, err := vn.LinkByIndex(inside.Attrs().ParentIndex)
	if errors.As(err, new(vn.LinkNotFoundError)) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	// The kernel gives the pod's namespace a number when the query above reports a device
	// whose other end is there.
	id, err := vn.GetNetNsIdByFd(int(pod))
	if err != nil {
		return nil, fmt.Errorf("look up the number of the pod's network namespace: %w", err)
	}
	is := outside.Attrs()
	if outside.Type() != "veth" || is.ParentIndex != inside.Attrs().Index || is.NetNsID < 0 ||
		is.NetNsID != id {
		return nil, nil
	}
	return outside, nil
}

// addresses returns the addresses of the pod's interface in a result. An address without
// an interface in the result counts as the pod's.
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

// parentName returns the name of the process that called the plugin: the runtime.
func parentName() string {
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", os.Getppid()))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(name))
}
