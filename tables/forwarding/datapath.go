// SPDX-License-Identifier: Apache-2.0

package forwarding

import (
	"net/netip"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
)

type configParams struct {
	cell.In

	Settings  settings
	Configs   statedb.RWTable[*tables.DatapathConfig]
	Nodes     statedb.Table[*tables.Node]
	Devices   statedb.Table[*tables.Device]
	Addresses statedb.Table[*tables.NodeAddress]
	Monitors  statedb.Table[*tables.Monitor]
	Entries   statedb.Table[*tables.ConfigMirror]
	LocalNode tables.LocalNode

	Policies    statedb.Table[*tables.NetworkPolicy]
	Limits      statedb.Table[*tables.EgressLimit]
	Leases      statedb.Table[*tables.EgressIPLease]
	Enforcement tables.Enforcement
	Attachments statedb.Table[*tables.Attachment]
	EgressIPs   tables.EgressIPs
}

// theConfig is the one key of datapath-config.
const theConfig uint32 = 0

func deriveConfig(p derive.Params, c configParams) error { return derive.Register(p, c.declare()) }

// declare is the rule that keeps what the programs have to know of this node.
func (c *configParams) declare() derive.Rule[uint32] {
	return derive.Rule[uint32]{
		Outputs: []statedb.TableMeta{c.Configs},
		Inputs: []derive.Input[uint32]{
			derive.FromIf(c.Nodes,
				func(old, new *tables.Node) bool { return old.UnderlayIP() != new.UnderlayIP() },
				func(_ statedb.ReadTxn, n *tables.Node, mark func(uint32)) {
					if n.Name == c.LocalNode.Name {
						mark(theConfig)
					}
				}),
			derive.FromChange(c.Devices,
				func(_ statedb.ReadTxn, old, new *tables.Device, mark func(uint32)) {
					if uses(old) != uses(new) { // not for each pod that comes
						mark(theConfig)
					}
				}),
			derive.OnChange(c.Addresses, markConfig),
			derive.OnChange(c.Monitors, markConfig),
			derive.FromIf(c.Policies,
				func(_, _ *tables.NetworkPolicy) bool { return false }, // that there are some is what matters
				func(_ statedb.ReadTxn, _ *tables.NetworkPolicy, mark func(uint32)) { mark(theConfig) }),
			derive.FromIf(c.Limits,
				func(_, _ *tables.EgressLimit) bool { return false }, // as of the policies
				func(_ statedb.ReadTxn, _ *tables.EgressLimit, mark func(uint32)) { mark(theConfig) }),
			derive.FromIf(c.Leases,
				func(_, _ *tables.EgressIPLease) bool { return false }, // that there are some is what matters
				func(_ statedb.ReadTxn, _ *tables.EgressIPLease, mark func(uint32)) { mark(theConfig) }),
			derive.Feedback(derive.OnChange(c.Attachments, markConfig)),
		},
		After: []statedb.TableMeta{c.Entries},
		Seed:  []uint32{theConfig},
		Compute: derive.Each(
			c.Configs, tables.DatapathConfigByIndex, (*tables.DatapathConfig).Equal, c.row),
	}
}

// used is what the configuration depends on of a device.
type used struct{ isOverlay, paces bool }

func uses(d *tables.Device) used {
	if d == nil {
		return used{}
	}
	return used{d.Name == tables.OverlayDeviceName, d.Paces()}
}

func markConfig(_ statedb.ReadTxn, mark func(uint32)) { mark(theConfig) }

func (c *configParams) row(txn statedb.ReadTxn, _ uint32) *tables.DatapathConfig {
	row := &tables.DatapathConfig{
		OverlayPort: c.Settings.OverlayPort,
		VNI:         c.Settings.OverlayVNI,
		Flags:       c.Settings.flags,
		MarkMask:    c.Settings.markMask,
		SharedPorts: c.Settings.sharedPorts,

		ConnectionShare: c.Settings.ConnectionShare,
		PortShare:       c.Settings.PortShare,

		Reason:     c.Settings.reason,
		Reconciled: tables.Pending(),
	}
	c.underlay(txn, row)
	if d := overlayDevice(txn, c.Devices); d != nil {
		row.OverlayIfIndex = uint32(d.Index)
	}
	if c.Monitors.NumObjects(txn) > 0 {
		row.Flags |= bpf.ConfigFlowEvents
	}
	if c.EgressIPs.Enabled { // also before it is known who votes: votes of a former run may have ended
		row.Flags |= bpf.ConfigFloating | bpf.ConfigEgressIPs
	}
	if c.Leases.NumObjects(txn) > 0 { // also of a former run, until the node has none of them
		row.Flags |= bpf.ConfigFloating
	}
	if c.Limits.NumObjects(txn) > 0 {
		row.Flags |= bpf.ConfigLimits
	}
	if c.paces(txn, row.Underlay) {
		row.Flags |= bpf.ConfigPaced
	}
	if c.holdsPods(txn) {
		row.Flags |= bpf.ConfigNetworkPolicies
	}
	return row
}

// underlay fills in the address of this node. Without a Node that says
// otherwise it stays as it was: packets of live connections come to it.
func (c *configParams) underlay(txn statedb.ReadTxn, row *tables.DatapathConfig) {
	n, _, found := c.Nodes.Get(txn, tables.NodeByName(c.LocalNode.Name))
	if found {
		row.Underlay = n.UnderlayIP()
	}
	if row.Underlay.IsValid() {
		return
	}
	row.Reason = "there is no Node " + c.LocalNode.Name
	if found {
		row.Reason = "Node " + n.Name + " has no internal address"
	}
	if row.Underlay = c.formerUnderlay(txn); row.Underlay.IsValid() {
		row.Reason += ", the last one stays"
	}
}

func (c *configParams) formerUnderlay(txn statedb.ReadTxn) netip.Addr {
	if existing, _, found := c.Configs.Get(txn, tables.DatapathConfigByIndex(theConfig)); found {
		return existing.Underlay
	}
	if entry := tables.ConfigEntryOf(txn, c.Entries); entry != nil {
		return entry.Value.Underlay.Addr()
	}
	return netip.Addr{}
}

// overlayDevice returns the overlay device, nil if there is none.
func overlayDevice(txn statedb.ReadTxn, devices statedb.Table[*tables.Device]) *tables.Device {
	for d := range devices.List(txn, tables.DevicesByName(tables.OverlayDeviceName)) {
		if d.Name == tables.OverlayDeviceName {
			return d
		}
	}
	return nil
}
