// SPDX-License-Identifier: Apache-2.0

package forwarding

import (
	"net/netip"
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/tablestest"
)

// Programs look at votes as long as the node has addresses that move, of a former agent too; what
// else concerns these they do with --egress-ips only.
func TestConfigOfEgressIPs(t *testing.T) {
	for _, enabled := range []bool{false, true} {
		db := statedb.New()
		leases := tablestest.Open(t, db, tables.NewEgressIPLeaseTable)
		c := configParams{
			Configs:     tablestest.Open(t, db, tables.NewDatapathConfigTable),
			Nodes:       tablestest.Open(t, db, tables.NewNodeTable),
			Devices:     tablestest.Open(t, db, tables.NewDeviceTable),
			Addresses:   tablestest.Open(t, db, tables.NewNodeAddressTable),
			Monitors:    tablestest.Open(t, db, tables.NewMonitorTable),
			Entries:     tablestest.Open(t, db, tables.NewConfigMirrorTable),
			Policies:    tablestest.Open(t, db, tables.NewNetworkPolicyTable),
			Limits:      tablestest.Open(t, db, tables.NewEgressLimitTable),
			Attachments: tablestest.Open(t, db, tables.NewAttachmentTable),
			Leases:      leases, Enforcement: tables.EnforcementDefault,
			EgressIPs: tables.EgressIPs{Enabled: enabled},
		}
		rule := tablestest.NewRule(t, db, c.declare())
		has := func(flags bpf.ConfigFlags) {
			t.Helper()
			rule.Work()
			row, _, found := c.Configs.Get(db.ReadTxn(), tables.DatapathConfigByIndex(theConfig))
			require.True(t, found)
			require.Equal(t, flags, row.Flags&(bpf.ConfigFloating|bpf.ConfigEgressIPs))
		}
		without, with := bpf.ConfigFlags(0), bpf.ConfigFloating
		if enabled {
			with |= bpf.ConfigEgressIPs
			without = with
		}
		has(without)
		lease := &tables.EgressIPLease{Addr: netip.MustParseAddr("203.0.113.9"), Assigned: true}
		leases.Put(lease)
		has(with)
		leases.Remove(lease)
		has(without)
	}
}
