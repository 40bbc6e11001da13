// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"iter"
	"strings"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
)

// looseReversePath is the value of rp_filter that accepts packets whose source
// is reachable by any interface (RFC 3704): replies to an egress IP may come in
// by another one than the route back to their source.
const looseReversePath = "2"

// deriveSysctls has the reverse path filter of the egress interfaces loosened.
func deriveSysctls(p derive.Params, sysctls statedb.RWTable[*tables.Sysctl], gateways statedb.Table[*tables.EgressGateway]) error {
	_, err := derive.Register(p, derive.Rule[string, *tables.Sysctl]{
		Output: sysctls,
		Inputs: []derive.Input[string]{
			derive.FromIf(gateways,
				func(old, new *tables.EgressGateway) bool { return old.Device != new.Device },
				func(_ statedb.ReadTxn, g *tables.EgressGateway, affect func(string)) {
					if g.Device != "" {
						affect(g.Device)
					}
				}),
		},
		Existing: func(txn statedb.ReadTxn, device string) iter.Seq2[*tables.Sysctl, statedb.Revision] {
			return sysctls.List(txn, tables.SysctlByName(reversePathFilter(device)))
		},
		Rows: func(txn statedb.ReadTxn, device string) []*tables.Sysctl {
			if _, _, used := gateways.Get(txn, tables.EgressGatewaysByDevice(device)); !used {
				return nil
			}
			return []*tables.Sysctl{{
				Name:   reversePathFilter(device),
				Value:  looseReversePath,
				Origin: "egress gateway on " + device,
				Status: reconciler.StatusPending(),
			}}
		},
		Equal: (*tables.Sysctl).Equal,
	})
	return err
}

// reversePathFilter is the path of a device's rp_filter. A dot in a device's
// name is part of a directory's name, as the path is not in dotted form.
func reversePathFilter(device string) string {
	return strings.Join([]string{"net", "ipv4", "conf", device, "rp_filter"}, "/")
}
