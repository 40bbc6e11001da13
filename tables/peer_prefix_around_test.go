// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

// StateDB finds a prefix inside the one that is asked for, or nothing, where there is a prefix
// around it. If this fails for StateDB alone, it is fixed, and PeerPrefixAround only has to
// compare families.
func TestPeerPrefixAround(t *testing.T) {
	for _, c := range []struct {
		prefixes        []string
		of              string
		statedb, around string // "" for none
	}{
		{[]string{"10.0.0.0/8"}, "10.1.0.0/16", "10.0.0.0/8", "10.0.0.0/8"},
		{[]string{"10.0.0.0/8"}, "10.0.0.0/8", "10.0.0.0/8", "10.0.0.0/8"},
		{[]string{"10.0.0.0/8", "10.1.2.3/32"}, "10.1.0.0/16", "10.1.2.3/32", "10.0.0.0/8"},
		{[]string{"10.0.0.0/8", "10.1.2.3/32", "10.1.2.4/32"}, "10.1.0.0/16", "", "10.0.0.0/8"},
		{[]string{"10.0.0.0/8", "10.1.2.3/32"}, "10.1.2.4/32", "10.0.0.0/8", "10.0.0.0/8"},
		{[]string{"::/0"}, "10.1.2.3/32", "::/0", ""},
	} {
		txn, table := newPeerPrefixes(t, c.prefixes...)
		of := netip.MustParsePrefix(c.of)
		prefix := func(p *PeerPrefix, found bool) string {
			if !found {
				return ""
			}
			return p.Prefix.String()
		}
		p, _, found := table.Get(txn, peerPrefixLongest.QueryPrefix(of))
		require.Equal(t, c.statedb, prefix(p, found), "StateDB: %s in %v", c.of, c.prefixes)
		p = PeerPrefixAround(txn, table, of)
		require.Equal(t, c.around, prefix(p, p != nil), "%s in %v", c.of, c.prefixes)
	}
}
