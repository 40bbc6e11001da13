// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"net/netip"
	"testing"

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
		if p.Error != "" || len(p.Prefixes)+len(p.Ranges) == 0 {
			require.NotEmpty(t, p.Errors)
		}
	}, `{"metadata":{"name":"p"},"spec":{"cidrs":["192.0.2.0/28"],"exclude":["192.0.2.1","::/0"],
		"ranges":[{"start":"198.51.100.1","end":"198.51.100.9"},{"start":"::2","end":"::1"}],
		"nodeSelector":{"matchLabels":{"a":"b"}},"maxPerNode":2}}`)
}
