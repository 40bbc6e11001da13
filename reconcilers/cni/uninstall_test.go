// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/tables"
)

// listen has an agent run with the socket that the node's plugin asks.
func (n *testNode) listen() (stop func()) {
	dir, err := os.MkdirTemp("", "cni") // short, as paths of sockets have to be
	require.NoError(n.t, err)
	n.t.Cleanup(func() { os.RemoveAll(dir) })
	n.plugin.Socket = filepath.Join(dir, "sock")
	l, err := net.Listen("unix", n.plugin.Socket)
	require.NoError(n.t, err)
	l.(*net.UnixListener).SetUnlinkOnClose(false) // as a killed agent leaves it
	stop = func() { l.Close() }
	n.t.Cleanup(stop)
	return stop
}

// The socket has changed since the plugin was installed, or there is none any more.
func TestUninstallWithAnotherSocket(t *testing.T) {
	for name, socket := range map[string]string{"none": "", "another": "/run/other/sock"} {
		t.Run(name, func(t *testing.T) {
			n := newTestNode(t)
			n.listen()() // the socket is there, and no process listens
			n.has("10-pods.conflist", bridge)
			n.install()
			removed, err := Uninstall(n.Paths, socket, n.run)
			require.NoError(t, err)
			require.Equal(t, []string{n.file(), n.Binary()}, removed)
			require.Equal(t, []string{"bridge", "portmap"}, types(n.loads()))
		})
	}
}

// The plugin of another agent is left alone while that runs, and the row says so.
func TestUninstallBesideAnotherAgent(t *testing.T) {
	n := newTestNode(t)
	stop := n.listen()
	n.has("10-pods.conflist", bridge)
	n.install()
	owner := n.plugin.Socket
	n.plugin.Socket = "/run/other/sock"
	n.loop(nil, runRemoved, func(l *testLoop) {
		require.Equal(t, tables.CNIBroken, l.row().State)
		require.Contains(t, l.row().Error, "it is of the agent that listens on "+owner)
		require.Equal(t, []string{"bridge", "portmap", "sluice-cni"}, types(n.loads()))

		stop()
		time.Sleep(time.Minute) // of the test's own time
		require.Equal(t, tables.CNIRemoved, l.row().State)
		require.Equal(t, []string{"bridge", "portmap"}, types(n.loads()))
	})
}

// Another program made its configuration from that of Sluice. While it names the plugin
// nothing is removed, so that pods start whichever the runtime takes.
func TestUninstallWhileOthersNameIt(t *testing.T) {
	n := newTestNode(t)
	n.has("10-pods.conflist", bridge)
	require.NoError(t, os.Symlink("nowhere", filepath.Join(n.ConfDir, "20-gone.conflist")))
	n.install()
	ours, err := os.ReadFile(n.file())
	require.NoError(t, err)
	const multus = "00-multus.conflist"
	n.has(multus, string(ours))
	n.loop(nil, runRemoved, func(l *testLoop) {
		require.Equal(t, tables.CNIBroken, l.row().State)
		require.Contains(t, l.row().Error, filepath.Join(n.ConfDir, multus)+" has sluice-cni in it too")
		require.Equal(t, []string{"bridge", "portmap", "sluice-cni"}, types(n.loads()))

		n.has(multus, `{"cniVersion": "1.0.0", "name": "m", "type": "multus", "delegates": [`+bridge+`]}`)
		time.Sleep(time.Minute) // of the test's own time
		require.Equal(t, tables.CNIRemoved, l.row().State)
		require.NoFileExists(t, n.file())
		require.NoFileExists(t, n.Binary())
	})
}
