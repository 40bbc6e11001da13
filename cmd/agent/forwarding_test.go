// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// coveredByKernel reports whether packets to an address are dropped that come
// from a pod of which the kernel does not know enough.
func coveredByKernel(r bpf.Reader, dst netip.Addr) bool {
	_, found := bpf.Match[bpf.CoveredKey, bpf.CoveredValue](r, "sluice_covered", bpf.CoveredKeyFrom(netip.PrefixFrom(dst, dst.BitLen())))
	return found
}

// compareForwarding says where the maps and attachments that are beside the
// policies differ from what the base tables, and other maps, ask for.
func (c *cluster) compareForwarding(txn statedb.ReadTxn, r bpf.Reader, destinations []netip.Addr) error {
	var errs []error
	differ := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for _, dst := range destinations {
		want := statedb.Collect(statedb.Filter(c.oracle.Policies.All(txn),
			func(p *tables.EgressPolicy) bool { return covering(p.Destinations, dst) >= 0 }))
		if got := coveredByKernel(r, dst); got != (len(want) > 0) {
			differ("%s is covered: by the maps %v, by the base tables %v", dst, got, len(want) > 0)
		}
	}
	want, got := c.oracle.alive(txn), map[string]bool{}
	for k, v := range bpf.All[bpf.NodeKey, bpf.NodeValue](r, "sluice_nodes") {
		got[fmt.Sprint(k, " ", v)] = true
	}
	if sortedKeys(want) != sortedKeys(got) {
		differ("nodes: by the maps %s, by the base tables %s", sortedKeys(got), sortedKeys(want))
	}
	c.compareLimits(txn, r, differ)
	c.compareExits(txn, r, differ)
	c.compareAttachments(txn, r, differ)
	return errors.Join(errs...)
}

// compareLimits: the kernel has the limits of all policies that have some, in bytes a second, and
// has packets asked about them if there are any.
func (c *cluster) compareLimits(txn statedb.ReadTxn, r bpf.Reader, differ func(string, ...any)) {
	want, got := map[string]bool{}, map[string]bool{}
	for p := range c.oracle.Policies.All(txn) {
		if p.Bandwidth > 0 || p.PodBandwidth > 0 {
			want[fmt.Sprint(bpf.PolicyCookie(p.Name), p.Bandwidth/8, p.PodBandwidth/8)] = true
		}
	}
	for k, v := range bpf.All[bpf.LimitKey, bpf.LimitValue](r, bpf.LimitsMap) {
		got[fmt.Sprint(k.Policy, tables.Bandwidth(v.Rate), tables.Bandwidth(v.PodRate))] = true
	}
	config, configured := bpf.Get[bpf.ConfigKey, bpf.ConfigValue](
		r, "sluice_config", bpf.ConfigKey{},
	)
	asks := config.Flags&bpf.ConfigLimits != 0
	if sortedKeys(want) != sortedKeys(got) || configured && asks != (len(want) > 0) {
		differ("limits: by the maps %s (asked: %v), by the base tables %s",
			sortedKeys(got), asks, sortedKeys(want))
	}
}

// alive are the addresses of nodes, with whether one that is ready has each.
func (o *oracle) alive(txn statedb.ReadTxn) map[string]bool {
	ready := map[netip.Addr]bpf.NodeValue{}
	claim := func(addrs []netip.Addr, is bool) {
		for _, a := range addrs {
			v := ready[a]
			if is {
				v.Flags = bpf.NodeAlive
			}
			ready[a] = v
		}
	}
	for n := range o.Nodes.All(txn) {
		claim(n.InternalIPs, n.Ready)
	}
	for cn := range o.Cilium.All(txn) {
		isReady := false
		for n := range o.Nodes.All(txn) {
			isReady = isReady || n.Name == cn.Name && n.Ready
		}
		claim(cn.Addrs, isReady)
	}
	lines := map[string]bool{}
	for a, v := range ready {
		lines[fmt.Sprint(bpf.NodeKey{Addr: bpf.AddressFrom(a)}, " ", v)] = true
	}
	return lines
}

// compareExits: what a gateway sends with is an exit, and each exit is an
// address of the node, by a device that has it. Others than the first linger.
func (c *cluster) compareExits(txn statedb.ReadTxn, r bpf.Reader, differ func(string, ...any)) {
	exits := map[netip.Addr]bpf.ExitValue{}
	for k, v := range bpf.All[bpf.ExitKey, bpf.ExitValue](r, "sluice_exits") {
		addr := k.Addr.Addr()
		exits[addr] = v
		on, want := false, bpf.ExitFlags(0)
		for a := range c.oracle.Addresses.All(txn) {
			on = on || a.Addr == addr && a.DeviceIndex == int(v.IfIndex)
		}
		if c.oracle.usedByHost(txn, addr, int(v.IfIndex)) {
			want = bpf.ExitShared
		}
		if !on || v.Flags != want {
			differ("exit %s %s: address of the device %v, flags by the base tables %s", k, v, on, want)
		}
	}
	for k, v := range bpf.All[bpf.GatewayKey, bpf.GatewayValue](r, "sluice_gateways") {
		for _, a := range []netip.Addr{netip.AddrFrom4(v.Egress4), v.Egress6.Addr()} {
			if a.IsValid() && !a.IsUnspecified() && exits[a].IfIndex != v.IfIndex {
				differ("%s sends with %s by device %d, which is no exit: %s", k, a, v.IfIndex, exits[a])
			}
		}
	}
}

// deviceWritten checks of each egress address and pod that the kernel comes to have at a
// device that the programs run there already: else replies would go to the node, and what
// the pod sends and gets would not be judged.
func (c *cluster) deviceWritten(w bpf.Write, _ bpf.Reader) {
	if w.Err != nil {
		return
	}
	switch v := w.Value.(type) {
	case bpf.ExitValue:
		if old, was := w.Old.(bpf.ExitValue); !was || old.IfIndex != v.IfIndex {
			c.requireAttached(w, v.IfIndex, bpf.ProgramFromNetdev, bpf.ProgramToNetdev)
		}
	case bpf.PodValue:
		if old, was := w.Old.(bpf.PodValue); v.IfIndex != 0 && (!was || old.IfIndex != v.IfIndex) {
			c.requireAttached(w, v.IfIndex, bpf.ProgramFromPod, bpf.ProgramToPod)
		}
	}
}

func (c *cluster) requireAttached(w bpf.Write, ifIndex uint32, programs ...bpf.Program) {
	txn := c.oracle.DB.ReadTxn()
	for _, program := range programs {
		a, _, found := c.attachments.Get(txn, tables.AttachmentByID(tables.AttachmentID{IfIndex: int(ifIndex), Program: program}))
		runs := found && (a.Status.Kind == reconciler.StatusKindDone ||
			a.Status.Kind == reconciler.StatusKindRefreshing) // attached for another reason too
		if !runs {
			c.checker.violation(fmt.Sprintf("%s: %s does not run there", w, program))
		}
	}
}

// usedByHost reports whether the node sends from an address for itself.
func (o *oracle) usedByHost(txn statedb.ReadTxn, addr netip.Addr, device int) bool {
	for n := range o.Nodes.All(txn) {
		if n.Name == o.LocalNode.Name && slices.Contains(n.InternalIPs, addr) {
			return true
		}
	}
	for route := range o.Routes.All(txn) {
		if route.Source == addr && route.Table != 255 {
			return true
		}
	}
	order, first := 1<<30, netip.Addr{}
	for a := range o.Addresses.All(txn) {
		if a.DeviceIndex == device && a.Addr.BitLen() == addr.BitLen() && a.Scope == "global" && a.Order < order {
			order, first = a.Order, a.Addr
		}
	}
	return first == addr
}

// expectReplies adds the programs at the other devices by which replies to egress addresses may come:
// those with addresses that are not within the node.
func (c *cluster) expectReplies(
	txn statedb.ReadTxn, r bpf.Reader, exists map[uint32]bool, want map[string]bool,
	at func(uint32, ...bpf.Program),
) {
	used := map[string]bool{}
	for id := range want {
		device, _, _ := strings.Cut(id, "/")
		used[device] = true
	}
	for range bpf.All[bpf.ExitKey, bpf.ExitValue](r, "sluice_exits") {
		for a := range c.oracle.Addresses.All(txn) {
			device, _, found := c.oracle.Devices.Get(txn, tables.DeviceByIndex(a.DeviceIndex))
			if found && exists[uint32(device.Index)] && device.MAC != "" && a.Scope == "global" &&
				!tables.IsWithinNode(device.Name) && !used[fmt.Sprint(device.Index)] {
				at(uint32(device.Index), bpf.ProgramFromNetdev)
			}
		}
	}
}

// compareAttachments: programs run at the devices that the maps name, and
// nowhere before there is a configuration. They stay at a veth that was a pod's.
func (c *cluster) compareAttachments(txn statedb.ReadTxn, r bpf.Reader, differ func(string, ...any)) {
	want, got := map[string]bool{}, map[string]bool{}
	at := func(device uint32, programs ...bpf.Program) {
		for _, p := range programs {
			want[tables.AttachmentID{IfIndex: int(device), Program: p}.String()] = true
		}
	}
	exists := map[uint32]bool{}
	if _, configured := bpf.Get[bpf.ConfigKey, bpf.ConfigValue](r, "sluice_config", bpf.ConfigKey{}); configured {
		at(0, bpf.ProgramBackstop)
		for d := range c.oracle.Devices.All(txn) {
			exists[uint32(d.Index)] = true
			if d.Name == "sluice_vxlan" {
				at(uint32(d.Index), bpf.ProgramFromOverlay)
			}
		}
	}
	for _, v := range bpf.All[bpf.PodKey, bpf.PodValue](r, "sluice_pods") {
		if exists[v.IfIndex] {
			at(v.IfIndex, bpf.ProgramFromPod, bpf.ProgramToPod)
		}
	}
	for _, v := range bpf.All[bpf.ExitKey, bpf.ExitValue](r, "sluice_exits") {
		if exists[v.IfIndex] {
			at(v.IfIndex, bpf.ProgramFromNetdev, bpf.ProgramToNetdev)
		}
	}
	for _, v := range bpf.All[bpf.GatewayKey, bpf.GatewayValue](r, "sluice_gateways") {
		if exists[v.IfIndex] && v.Egress4 != [4]byte{} {
			at(v.IfIndex, bpf.ProgramFromNetdev, bpf.ProgramToNetdev)
		}
	}
	c.expectReplies(txn, r, exists, want, at)
	for row := range c.attachments.All(txn) {
		device, _, _ := c.oracle.Devices.Get(txn, tables.DeviceByIndex(row.IfIndex))
		stays := row.Origin == tables.UnknownPodAttachment
		if !stays || device == nil || device.Type != "veth" || device.Name != row.Device {
			got[row.ID().String()] = true
		}
	}
	if sortedKeys(want) != sortedKeys(got) {
		differ("attachments: there are %s, the maps ask for %s", sortedKeys(got), sortedKeys(want))
	}
}
