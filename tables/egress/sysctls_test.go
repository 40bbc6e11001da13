// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"net/netip"
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/tables"
)

// The filter is loosened of devices by which traffic leaves while some may, and of the
// overlay device while it is there.
func TestSysctls(t *testing.T) {
	b := newBase[string](t)
	var s sysctlParams
	var exits statedb.RWTable[*tables.EgressExit]
	var devices statedb.RWTable[*tables.Device]
	fill(b, &s.Sysctls, tables.NewSysctlTable)
	fill(b, &exits, tables.NewEgressExitTable)
	fill(b, &devices, tables.NewDeviceTable)
	s.Exits, s.Devices = exits, devices
	b.start(s.declare())
	sysctls := func() map[string]string {
		b.work()
		origins := map[string]string{}
		for row := range s.Sysctls.All(b.db.ReadTxn()) {
			require.Equal(t, "2", row.Value)
			origins[row.Name] = row.Origin
		}
		return origins
	}
	exit := func(last byte, device string) *tables.EgressExit {
		return &tables.EgressExit{Addr: netip.AddrFrom4([4]byte{192, 0, 2, last}), Device: device}
	}
	put(b, devices, device("eth0", 2), device(tables.OverlayDeviceName, 3))
	overlay := "net/ipv4/conf/" + tables.OverlayDeviceName + "/rp_filter"
	require.Equal(t, map[string]string{overlay: "overlay"}, sysctls())
	put(b, exits, exit(1, "eth0.5"), exit(2, "eth0.5"))
	require.Equal(t, map[string]string{
		overlay: "overlay", "net/ipv4/conf/eth0.5/rp_filter": "egress gateway on eth0.5",
	}, sysctls())
	remove(b, exits, exit(1, "eth0.5"))
	require.Len(t, sysctls(), 2)
	put(b, exits, exit(2, "eth0"))
	require.Contains(t, sysctls(), "net/ipv4/conf/eth0/rp_filter")
	require.NotContains(t, sysctls(), "net/ipv4/conf/eth0.5/rp_filter")
	remove(b, exits, exit(2, "eth0"))
	remove(b, devices, device(tables.OverlayDeviceName, 3))
	require.Empty(t, sysctls())
}
