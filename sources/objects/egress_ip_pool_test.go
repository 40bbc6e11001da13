// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/tables"
)

func poolOf(t *testing.T, spec string) *tables.EgressIPPool {
	t.Helper()
	o, err := EgressIPPoolKind().Decode([]byte(`{"apiVersion":"sluice.io/v1alpha1","kind":"EgressIPPool",
		"metadata":{"name":"a","creationTimestamp":"2025-01-01T00:00:00Z"},"spec":` + spec + `}`))
	require.NoError(t, err)
	require.NoError(t, o.Err)
	require.Len(t, o.rows, 1)
	return o.rows[0].(*tables.EgressIPPool)
}

func TestEgressIPPool(t *testing.T) {
	p := poolOf(t, `{"cidrs":["192.0.2.7/28","2001:db8::/126"],
		"ranges":[{"start":"198.51.100.10","end":"198.51.100.12"}],
		"exclude":["192.0.2.0/30","198.51.100.11"],
		"nodeSelector":{"matchLabels":{"egress":"yes"}},"maxPerNode":3}`)
	require.Empty(t, p.Errors)
	require.Empty(t, p.Error)
	require.Equal(t, "egress=yes", p.Nodes)
	require.Equal(t, 3, p.MaxPerNode)
	for text, want := range map[string]bool{
		"192.0.2.3": false, "192.0.2.4": true, "192.0.2.15": true, "192.0.2.16": false,
		"2001:db8::3": true, "2001:db8::4": false,
		"198.51.100.9": false, "198.51.100.10": true, "198.51.100.11": false,
		"198.51.100.12": true, "198.51.100.13": false, "::c633:640a": false,
	} {
		require.Equal(t, want, p.Contains(netip.MustParseAddr(text)), text)
	}
}

// Each mistake is named, and one that would have more addresses move, or to other nodes, stops
// the pool.
func TestEgressIPPoolMistakes(t *testing.T) {
	for _, c := range []struct {
		spec, errors string
		stops        bool
	}{
		{`{}`, "spec.cidrs: required, unless there are ranges", false},
		{`{"cidrs":["192.0.2.0/33","192.0.2.0/24"]}`,
			`spec.cidrs[0]: "192.0.2.0/33": prefix length out of range`, false},
		{`{"ranges":[{"start":"192.0.2.9","end":"192.0.2.1"}]}`,
			"spec.ranges[0]: its start is behind its end, or of another family", false},
		{`{"ranges":[{"start":"192.0.2.9","end":"2001:db8::1"}]}`,
			"spec.ranges[0]: its start is behind its end, or of another family", false},
		{`{"ranges":[{"end":"192.0.2.1"}]}`, "spec.ranges[0].start: is empty", false},
		{`{"cidrs":["192.0.2.0/24"],"exclude":["x"]}`,
			`spec.exclude[0]: "x": no '/'`, true},
		{`{"cidrs":["192.0.2.0/24"],"maxPerNode":0}`,
			"spec.maxPerNode: 0 is out of bounds: want 1 to 1024", true},
		{`{"cidrs":["192.0.2.0/24"],"nodeSelector":{"matchExpressions":[{"key":"a","operator":"X"}]}}`,
			`spec.nodeSelector: "X" is not a valid label selector operator`, true},
		{`{"cidrs":["192.0.2.0/24"],"exclude":7}`, "spec.exclude: ", true},
		{`{"cidrs":["192.0.2.0/24"],"portsPerBlock":96}`,
			"spec.portsPerBlock: 96 is no power of two from 64 to 4096", true},
		{`{"cidrs":["192.0.2.0/24"],"portsPerBlock":8192}`, "spec.portsPerBlock: 8192 is", true},
		{`{"cidrs":["192.0.2.0/24"],"portsPerBlock":"64"}`, "spec.portsPerBlock: must be", true},
	} {
		p := poolOf(t, c.spec)
		errs := fieldErrors(p.Errors).String()
		require.Contains(t, errs, c.errors, c.spec)
		require.Equal(t, c.stops, p.Error != "", "%s: %q", c.spec, p.Error)
	}
}

func FuzzEgressIPPool(f *testing.F) {
	fuzz(f, EgressIPPoolKind(), func(t *testing.T, p *tables.EgressIPPool) {
		validPrefixes(t, append(p.Prefixes, p.Excluded...)...)
		for _, r := range p.Ranges {
			validAddrs(t, r.First, r.Last)
			require.True(t, r.Contains(r.First) && r.Contains(r.Last), r)
		}
		validSelector(t, p.Nodes)
		for i, b := range p.Blocks {
			require.True(t, 0 <= b.Index && b.Index < tables.PortBlocks(p.PortsPerBlock), b)
			require.True(t, i == 0 || p.Blocks[i-1].Index < b.Index, b)
			require.NotEmpty(t, b.Node)
		}
		for _, a := range p.Allocations {
			validAddrs(t, a.Addr)
			require.NotEmpty(t, a.Policy)
		}
		if p.Error != "" || len(p.Prefixes)+len(p.Ranges) == 0 {
			require.NotEmpty(t, p.Errors)
		}
	}, `{"metadata":{"name":"p"},"spec":{"cidrs":["192.0.2.0/28"],"exclude":["192.0.2.1","::/0"],
		"ranges":[{"start":"198.51.100.1","end":"198.51.100.9"},{"start":"::2","end":"::1"}],
		"nodeSelector":{"matchLabels":{"a":"b"}},"maxPerNode":2,"portsPerBlock":64},
		"status":{"blocks":[{"index":3,"node":"n","released":"2025-01-01T00:00:00Z"}],
		"allocations":[{"address":"192.0.2.2","policy":"p"}],"conditions":[{"type":"A"}]}}`)
}

// An item of the status that cannot be is left out, and of two of one index the second.
func TestEgressIPPoolStatus(t *testing.T) {
	const status = `{"portsPerBlock":64,"cidrs":["192.0.2.0/24"]},"status":{
		"addresses":{"total":256,"used":3},
		"blocks":[
			{"index":1007,"node":"last"},{"index":1,"node":"b","released":"2025-01-02T03:04:05+01:00"},
			{"index":0,"node":"a"},{"index":1,"node":"c"},{"index":-1,"node":"d"},
			{"index":1008,"node":"e"},{"node":"f"},{"index":2},{"index":"3","node":"g"},
			{"index":4,"node":"h","released":"yesterday"}, 7,
			{"index":5,"node":"a","closed":"2025-01-02T03:04:05Z"},{"index":6,"node":"h","closed":"x"}],
		"allocations":[
			{"address":"192.0.2.9","policy":"web"},{"address":"192.0.2.1","policy":"db"},
			{"address":"192.0.2.9","policy":"other"},{"address":"192.0.2.3","policy":"db"},
			{"address":"x","policy":"y"},{"address":"192.0.2.4"}],
		"conditions":[{"type":"A","status":"True","lastTransitionTime":"2025-01-01T00:00:00Z"}]}`
	p := poolOf(t, status)
	require.Equal(t, 64, p.PortsPerBlock)
	require.Equal(t, []tables.PortBlock{
		{Index: 0, Node: "a"},
		{Index: 1, Node: "b", Released: time.Date(2025, 1, 2, 2, 4, 5, 0, time.UTC)},
		{Index: 5, Node: "a", Closed: time.Date(2025, 1, 2, 3, 4, 5, 0, time.UTC)},
		{Index: 1007, Node: "last"},
	}, p.Blocks)
	require.Equal(t, []tables.PoolAllocation{
		{Addr: netip.MustParseAddr("192.0.2.1"), Policy: "db"},
		{Addr: netip.MustParseAddr("192.0.2.9"), Policy: "web"},
	}, p.Allocations)
	require.Empty(t, p.Error, "what the operator writes stops no pool")
	require.Len(t, p.Errors, 9+4)
	require.Nil(t, p.Object, "agents' rows change with what matters to them")

	require.Equal(t, 256, poolOf(t, `{"cidrs":["192.0.2.0/24"]}`).PortsPerBlock)
	none := poolOf(t, `{"cidrs":["192.0.2.0/24"],"portsPerBlock":3},
		"status":{"blocks":[{"index":0,"node":"a"}]}`)
	require.Empty(t, none.Blocks)
}
