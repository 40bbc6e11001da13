// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
)

// What is beside a prefix, around it, of pods or of the other family is not in it.
func TestIPCacheWithin(t *testing.T) {
	db := statedb.New()
	table, err := NewIPCacheTable(db)
	require.NoError(t, err)
	wtxn := db.WriteTxn(table)
	insert := func(text string, flags bpf.IPCacheFlags) {
		_, _, err := table.Insert(wtxn, &IPCache{Prefix: netip.MustParsePrefix(text), Flags: flags})
		require.NoError(t, err)
	}
	for i := range 100 {
		insert(fmt.Sprintf("100.0.%d.0/24", i), 0)
	}
	insert("100.0.7.9/32", bpf.IPCacheService)
	insert("100.0.7.8/32", bpf.IPCachePod)
	insert("0.0.0.0/0", 0)
	insert("::/0", 0)
	insert("fd00::/64", 0)
	insert("fd00::1/128", bpf.IPCacheService)
	txn := wtxn.Commit()

	for within, want := range map[string]int{
		"101.0.0.0/24":   0, // beside a hundred
		"100.1.0.0/16":   0,
		"100.0.0.0/8":    101,
		"100.0.7.0/24":   2,
		"100.0.7.128/25": 0,
		"100.0.7.9/32":   1,
		"0.0.0.0/0":      102,
		"::/0":           3,
		"::/64":          0, // as far as the index goes, IPv4 is in it
		"fd00::/16":      2,
		"fd01::/16":      0,
	} {
		prefix := netip.MustParsePrefix(within)
		rows := slices.Collect(IPCacheWithin(txn, table, prefix))
		require.Len(t, rows, want, within)
		for _, row := range rows {
			require.True(t, prefix.Contains(row.Prefix.Addr()) && prefix.Bits() <= row.Prefix.Bits(), "%s in %s", row.Prefix, within)
		}
	}
}
