// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"net/netip"
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/tablestest"
)

// The filter is loosened of devices by which traffic leaves while some may, and of the
// overlay device while it is there.
func TestSysctls(t *testing.T) {
	db := statedb.New()
	exits := tablestest.Open(t, db, tables.NewEgressExitTable)
	devices := tablestest.Open(t, db, tables.NewDeviceTable)
	s := sysctlParams{
		Exits: exits, Devices: devices, Sysctls: tablestest.Open(t, db, tables.NewSysctlTable),
	}
	step := tablestest.NewRule(t, db, s.declare())
	sysctls := func() map[string]string {
		step.Work()
		origins := map[string]string{}
		for row := range s.Sysctls.All(db.ReadTxn()) {
			require.Equal(t, "2", row.Value)
			origins[row.Name] = row.Origin
		}
		return origins
	}
	exit := func(last byte, device string) *tables.EgressExit {
		return &tables.EgressExit{Addr: netip.AddrFrom4([4]byte{192, 0, 2, last}), Device: device}
	}
	devices.Put(device("eth0", 2), device(tables.OverlayDeviceName, 3))
	overlay := "net/ipv4/conf/" + tables.OverlayDeviceName + "/rp_filter"
	require.Equal(t, map[string]string{overlay: "overlay"}, sysctls())
	exits.Put(exit(1, "eth0.5"), exit(2, "eth0.5"))
	require.Equal(t, map[string]string{
		overlay: "overlay", "net/ipv4/conf/eth0.5/rp_filter": "egress gateway on eth0.5",
	}, sysctls())
	exits.Remove(exit(1, "eth0.5"))
	require.Len(t, sysctls(), 2)
	exits.Put(exit(2, "eth0"))
	require.Contains(t, sysctls(), "net/ipv4/conf/eth0/rp_filter")
	require.NotContains(t, sysctls(), "net/ipv4/conf/eth0.5/rp_filter")
	exits.Remove(exit(2, "eth0"))
	devices.Remove(device(tables.OverlayDeviceName, 3))
	require.Empty(t, sysctls())
}
