// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"net"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// follow begins to follow events, and returns how to stop.
func (c *cluster) follow(query string) (stop func()) {
	ctx, cancel := context.WithCancel(c.t.Context())
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(c.state, "sluice.sock"))
	}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://sluice/monitor?"+query, nil)
	require.NoError(c.t, err)
	response, err := (&http.Client{Transport: transport}).Do(request)
	require.NoError(c.t, err)
	require.Equal(c.t, http.StatusOK, response.StatusCode)
	stop = func() {
		cancel()
		response.Body.Close()
		transport.CloseIdleConnections()
	}
	c.t.Cleanup(stop)
	return stop
}

// The programs report new flows while a client follows them, and only then.
func TestFlowEventsWhileFollowed(t *testing.T) {
	c := newCluster(t, []string{"--node-name=node-1"})
	require.NoError(t, c.api.Sync())
	require.NoError(t, c.api.Apply(lateNode("node-1", 1, "egress: a")))
	require.NoError(t, c.hive.Start(c.log, t.Context()))
	reporting := func() (kernel bool) {
		require.Eventually(t, func() bool { // not while another client comes or goes
			require.NoError(t, c.quiet(t.Context()))
			c.memory.Read(func(r bpf.Reader) {
				v, found := bpf.Get[bpf.ConfigKey, bpf.ConfigValue](r, "sluice_config", bpf.ConfigKey{})
				require.True(t, found)
				kernel = v.Flags&bpf.ConfigFlowEvents != 0
			})
			row, _, found := c.desire.Configs.Get(c.oracle.DB.ReadTxn(), tables.DatapathConfigByIndex(0))
			require.True(t, found)
			return kernel == (row.Flags&bpf.ConfigFlowEvents != 0)
		}, settleTimeout, time.Millisecond)
		return kernel
	}
	eventually := func(want bool) {
		t.Helper()
		for deadline := time.Now().Add(settleTimeout); reporting() != want; {
			require.True(t, time.Now().Before(deadline))
		}
	}
	require.False(t, reporting())

	c.follow("kind=drop")
	require.False(t, reporting(), "drops are reported always")
	first, second := c.follow("kind=flow"), c.follow("")
	eventually(true)
	first()
	require.True(t, reporting(), "a client is left")
	second()
	eventually(false)
}
