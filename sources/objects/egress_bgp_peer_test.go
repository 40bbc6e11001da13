// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/tables"
)

func bgpPeerOf(t *testing.T, spec string) *tables.EgressBGPPeer {
	t.Helper()
	o, err := EgressBGPPeerKind().Decode([]byte(`{"apiVersion":"sluice.io/v1alpha1",
		"kind":"EgressBGPPeer","metadata":{"name":"a"},"spec":` + spec + `}`))
	require.NoError(t, err)
	require.NoError(t, o.Err)
	require.Len(t, o.rows, 1)
	return o.rows[0].(*tables.EgressBGPPeer)
}

func TestEgressBGPPeer(t *testing.T) {
	p := bgpPeerOf(t, `{"localASN":64512,"peerASN":4200000000,"peerAddress":"192.0.2.1"}`)
	require.Empty(t, p.Errors)
	require.Equal(t, tables.BGPSettings{
		LocalASN: 64512, PeerASN: 4200000000, Addr: netip.MustParseAddr("192.0.2.1"), Port: 179,
		HoldTime: 90 * time.Second, Keepalive: 30 * time.Second, MultihopTTL: 1,
	}, p.BGPSettings)
	require.Empty(t, p.Nodes)

	p = bgpPeerOf(t, `{"localASN":1,"peerASN":1,"peerAddress":"2001:db8::1","peerPort":1179,
		"holdTimeSeconds":9,"keepaliveSeconds":2,"ebgpMultihopTTL":3,
		"nodeSelector":{"matchLabels":{"egress":"yes"}}}`)
	require.Empty(t, p.Errors)
	require.Equal(t, tables.BGPSettings{
		LocalASN: 1, PeerASN: 1, Addr: netip.MustParseAddr("2001:db8::1"), Port: 1179,
		HoldTime: 9 * time.Second, Keepalive: 2 * time.Second, MultihopTTL: 3,
	}, p.BGPSettings)
	require.Equal(t, "egress=yes", p.Nodes)
}

// Each mistake is named by its field.
func TestEgressBGPPeerMistakes(t *testing.T) {
	const valid = `"localASN":64512,"peerASN":64513,"peerAddress":"192.0.2.1"`
	for _, c := range []struct{ spec, errors string }{
		{`{}`, "spec.localASN: required; spec.peerASN: required; spec.peerAddress: is empty"},
		{`{"localASN":0,"peerASN":4294967295,"peerAddress":"192.0.2.1"}`,
			"spec.localASN: 0 is out of bounds: want 1 to 4294967294; " +
				"spec.peerASN: 4294967295 is out of bounds: want 1 to 4294967294"},
		{`{"localASN":23456,"peerASN":1,"peerAddress":"192.0.2.1"}`,
			"spec.localASN: 23456 is reserved"},
		{`{"localASN":1,"peerASN":1,"peerAddress":"fe80::1"}`,
			`spec.peerAddress: "fe80::1": is link-local`},
		{`{"localASN":1,"peerASN":1,"peerAddress":"0.0.0.0"}`,
			`spec.peerAddress: "0.0.0.0": is not the address of a host`},
		{`{` + valid + `,"peerPort":65536}`,
			"spec.peerPort: 65536 is out of bounds: want 1 to 65535"},
		{`{` + valid + `,"holdTimeSeconds":2}`,
			"spec.holdTimeSeconds: 2 is out of bounds: want 3 to 3600"},
		{`{` + valid + `,"holdTimeSeconds":9,"keepaliveSeconds":4}`,
			"spec.keepaliveSeconds: 4 is out of bounds: want 1 to 3"},
		{`{` + valid + `,"ebgpMultihopTTL":256}`,
			"spec.ebgpMultihopTTL: 256 is out of bounds: want 1 to 255"},
		{`{` + valid + `,"nodeSelector":{"matchExpressions":[{"key":"a","operator":"X"}]}}`,
			`spec.nodeSelector: "X" is not a valid label selector operator`},
		{`{` + valid + `,"peerPort":"a"}`, "spec.peerPort: "},
	} {
		require.Contains(t, fieldErrors(bgpPeerOf(t, c.spec).Errors).String(), c.errors, c.spec)
	}
}

func FuzzEgressBGPPeer(f *testing.F) {
	fuzz(f, EgressBGPPeerKind(), func(t *testing.T, p *tables.EgressBGPPeer) {
		validSelector(t, p.Nodes)
		require.NotZero(t, p.Port)
		require.NotZero(t, p.MultihopTTL)
		require.GreaterOrEqual(t, p.HoldTime, 3*time.Second)
		require.GreaterOrEqual(t, p.Keepalive, time.Second)
		require.LessOrEqual(t, 3*p.Keepalive, p.HoldTime)
		if len(p.Errors) == 0 {
			validAddrs(t, p.Addr)
			require.NotZero(t, p.LocalASN)
			require.NotZero(t, p.PeerASN)
		}
	}, `{"metadata":{"name":"p"},"spec":{"localASN":1,"peerASN":2,"peerAddress":"192.0.2.1",
		"peerPort":1179,"holdTimeSeconds":9,"keepaliveSeconds":3,"ebgpMultihopTTL":2,
		"nodeSelector":{"matchLabels":{"a":"b"}}}}`)
}
