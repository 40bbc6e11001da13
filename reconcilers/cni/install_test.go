// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/cniconf"
	"github.com/sluice-net/sluice/tables/cnifile"
)

const (
	bridge = `{"cniVersion": "1.0.0", "name": "pods", "x-other": 12345678901234567890, "plugins": [
		{"type": "bridge", "ipam": {"type": "host-local"}, "mtu": 1450}, {"type": "portmap", "capabilities": {"portMappings": true}}]}`
	single = `{"cniVersion": "0.3.1", "name": "one", "type": "ptp", "ipMasq": true}`
)

// testNode is a node's directories, with an installer.
type testNode struct {
	*installer
	t   testing.TB
	run string
}

func newTestNode(t testing.TB) *testNode {
	dir := t.TempDir()
	n := &testNode{t: t, run: filepath.Join(dir, "run"), installer: &installer{
		Paths: Paths{ConfDir: filepath.Join(dir, "net.d"), BinDir: filepath.Join(dir, "bin")},
		disk:  realDisk{}, source: filepath.Join(dir, "image", "sluice-cni"),
		plugin: cniconf.Config{Socket: "/run/sock", RunDir: filepath.Join(dir, "run"),
			BPFFS: "/sys/fs/bpf", Timeout: cniconf.Duration(time.Second)},
	}}
	for _, d := range []string{n.ConfDir, n.BinDir, filepath.Dir(n.source)} {
		require.NoError(t, os.Mkdir(d, 0o755))
	}
	require.NoError(t, os.WriteFile(n.source, []byte("the plugin"), 0o755))
	return n
}

func (n *testNode) has(name, text string) {
	require.NoError(n.t, os.WriteFile(filepath.Join(n.ConfDir, name), []byte(text), 0o644))
}

// loads returns what a runtime makes of the directory, as containerd does: of the first
// file. The plugins that it names have to be there.
func (n *testNode) loads() *libcni.NetworkConfigList {
	files, err := libcni.ConfFiles(n.ConfDir, []string{".conf", ".conflist", ".json"})
	require.NoError(n.t, err)
	require.NotEmpty(n.t, files)
	var list *libcni.NetworkConfigList
	if filepath.Ext(files[0]) == ".conflist" {
		list, err = libcni.ConfListFromFile(files[0])
		require.NoError(n.t, err)
	} else {
		one, err := libcni.ConfFromFile(files[0]) //lint:ignore SA1019 runtimes call it
		require.NoError(n.t, err)
		list, err = libcni.ConfListFromConf(one) //lint:ignore SA1019 runtimes call it
		require.NoError(n.t, err)
	}
	for _, plugin := range list.Plugins {
		if plugin.Network.Type == cniconf.Type {
			binary, err := os.ReadFile(n.Binary())
			require.NoError(n.t, err, "the configuration names a plugin that is not there")
			require.Contains(n.t, []string{"the plugin", "another version"}, string(binary))
			info, err := os.Stat(n.Binary())
			require.NoError(n.t, err)
			require.EqualValues(n.t, 0o755, info.Mode().Perm())
		}
	}
	return list
}

func types(list *libcni.NetworkConfigList) (names []string) {
	for _, p := range list.Plugins {
		names = append(names, p.Network.Type)
	}
	return names
}

// The plugin is added at the end, and all else is as it was.
func TestInstall(t *testing.T) {
	n := newTestNode(t)
	require.Equal(t, tables.CNIWaiting, n.install().State, "there is nothing to chain to")
	require.NoFileExists(t, n.file())

	n.has("10-pods.conflist", bridge)
	n.has("99-loopback.conf", single)
	row := n.install()
	require.Equal(t, &tables.CNIConfig{
		File: n.file(), MadeFrom: filepath.Join(n.ConfDir, "10-pods.conflist"), Network: "pods",
		CNIVersion: "1.0.0", State: tables.CNIInstalled,
	}, row)
	list := n.loads()
	require.Equal(t, []string{"bridge", "portmap", "sluice-cni"}, types(list))
	var was, is map[string]json.RawMessage
	require.NoError(t, json.Unmarshal([]byte(bridge), &was))
	require.NoError(t, json.Unmarshal(list.Bytes, &is))
	require.Equal(t, string(was["x-other"]), string(is["x-other"]), "to the digit")
	var plugins []json.RawMessage
	require.NoError(t, json.Unmarshal(was["plugins"], &plugins))
	for i, plugin := range plugins {
		require.JSONEq(t, string(plugin), string(list.Plugins[i].Bytes))
	}
	var own entry
	require.NoError(t, json.Unmarshal(list.Plugins[2].Bytes, &own))
	require.Equal(t,
		entry{Type: cniconf.Type, Config: n.plugin, MadeFrom: []string{"bridge", "portmap"}}, own)

	// Nothing is written that is there already.
	n.disk = &killed{left: 0}
	require.Equal(t, row, n.install())
	n.disk = realDisk{}

	// The CNI's file changes, and is replaced by a single plugin.
	n.has("10-pods.conflist",
		`{"cniVersion": "0.4.0", "name": "pods", "plugins": [{"type": "calico"}]}`)
	require.Equal(t, tables.CNIInstalled, n.install().State)
	require.Equal(t, []string{"calico", "sluice-cni"}, types(n.loads()))
	require.NoError(t, os.Remove(filepath.Join(n.ConfDir, "10-pods.conflist")))
	require.Equal(t, "one", n.install().Network)
	list = n.loads()
	require.Equal(t, []string{"ptp", "sluice-cni"}, types(list))
	require.Equal(t, "0.3.1", list.CNIVersion)
	require.Contains(t, string(list.Plugins[0].Bytes), `"ipMasq":true`)

	// It goes, and with it what was made from it.
	require.NoError(t, os.Remove(filepath.Join(n.ConfDir, "99-loopback.conf")))
	require.Equal(t, tables.CNIWaiting, n.install().State)
	require.NoFileExists(t, n.file())
	require.FileExists(t, n.Binary())
}

// What cannot be used is told, and what was made before stays.
func TestCannotInstall(t *testing.T) {
	for name, tc := range map[string]struct{ file, text, err string }{
		"not JSON":      {"10-pods.conflist", `{"cniVersion": "1.0.0", "na`, "unexpected end of JSON input"},
		"no name":       {"10-pods.conflist", `{"cniVersion": "1.0.0", "plugins": [{"type": "bridge"}]}`, "no name"},
		"no plugins":    {"10-pods.conflist", `{"cniVersion": "1.0.0", "name": "pods", "plugins": []}`, "no plugins"},
		"without list":  {"10-pods.conflist", `{"cniVersion": "1.0.0", "name": "pods"}`, "it has no plugins in it"},
		"no type":       {"10-pods.conf", `{"cniVersion": "1.0.0", "name": "pods"}`, "it has no type"},
		"old":           {"10-pods.conflist", `{"cniVersion": "0.2.0", "name": "pods", "plugins": [{"type": "bridge"}]}`, "older than 0.3.0"},
		"no version":    {"10-pods.json", `{"name": "pods", "type": "bridge"}`, "older than 0.3.0"},
		"made of ours":  {"00-multus.conf", `{"cniVersion": "1.0.0", "name": "m", "type": "multus", "delegates": [{"plugins": [{"type": "sluice-cni"}]}]}`, "has sluice-cni in it already"},
		"empty":         {"10-pods.conflist", "", "unexpected end of JSON input"},
		"another value": {"10-pods.conflist", "[]", "cannot unmarshal"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newTestNode(t)
			n.has(tc.file, tc.text)
			row := n.install()
			require.Equal(t, tables.CNIBroken, row.State)
			require.Contains(t, row.Error, "use "+filepath.Join(n.ConfDir, tc.file)+": ")
			require.Contains(t, row.Error, tc.err)
			require.NoFileExists(t, n.file())

			require.NoError(t, os.Remove(filepath.Join(n.ConfDir, tc.file)))
			n.has("20-pods.conflist", bridge)
			require.Equal(t, tables.CNIInstalled, n.install().State)
			n.has(tc.file, tc.text)
			require.Contains(t, n.install().Error, tc.err)
			require.Equal(t, []string{"bridge", "portmap", "sluice-cni"}, types(n.loads()))
		})
	}
	n := newTestNode(t)
	n.has("-first.conflist", bridge)
	row := n.install()
	require.Equal(t, tables.CNIBroken, row.State)
	require.Contains(t, row.Error, "-first.conflist, which sorts before")
	n = newTestNode(t)
	require.NoError(t, os.Remove(n.source))
	require.Contains(t, n.install().Error, "read the CNI plugin, which is beside the agent")
}

var errKilled = errors.New("killed")

// killed does some operations, half of one more if that writes, and none after that.
type killed struct {
	realDisk
	left int
	all  int
}

func (k *killed) next() bool { k.left--; k.all++; return k.left >= 0 }

func (k *killed) write(path string, data []byte, mode fs.FileMode) error {
	if !k.next() {
		if k.left == -1 {
			return errors.Join(errKilled, k.realDisk.write(path, data[:len(data)/2], 0o600))
		}
		return errKilled
	}
	return k.realDisk.write(path, data, mode)
}

func (k *killed) rename(from, to string) error {
	if !k.next() {
		return errKilled
	}
	return k.realDisk.rename(from, to)
}

func (k *killed) remove(path string) error {
	if !k.next() {
		return errKilled
	}
	return k.realDisk.remove(path)
}

// However far the installer comes, a runtime finds a configuration that works, with all
// plugins that it names; and the next installer finishes.
func TestKilled(t *testing.T) {
	steps := map[string]struct {
		before, do, after func(t *testing.T, n *testNode)
		least             int // operations
	}{
		"install": {
			before: func(*testing.T, *testNode) {},
			do:     func(_ *testing.T, n *testNode) { n.install() },
			after: func(t *testing.T, n *testNode) {
				require.Equal(t, []string{"bridge", "portmap", "sluice-cni"}, types(n.loads()))
			},
			least: 4,
		},
		"another version of both": {
			before: func(t *testing.T, n *testNode) {
				n.install()
				n.has("10-pods.conflist", single2)
				require.NoError(t, os.WriteFile(n.source, []byte("another version"), 0o755))
			},
			do:    func(_ *testing.T, n *testNode) { n.install() },
			after: func(t *testing.T, n *testNode) { require.Equal(t, []string{"calico", "sluice-cni"}, types(n.loads())) },
			least: 4,
		},
		"remove": {
			before: func(_ *testing.T, n *testNode) { n.install() },
			do: func(t *testing.T, n *testNode) {
				_, err := uninstall(n.disk, n.Paths, n.plugin.Socket, n.run)
				if err != nil {
					require.ErrorIs(t, err, errKilled)
				}
			},
			after: func(t *testing.T, n *testNode) {
				require.Equal(t, []string{"bridge", "portmap"}, types(n.loads()))
				require.NoFileExists(t, n.file())
				require.NoFileExists(t, n.Binary())
				files, err := os.ReadDir(n.ConfDir)
				require.NoError(t, err)
				require.Len(t, files, 1)
				files, err = os.ReadDir(n.BinDir)
				require.NoError(t, err)
				require.Empty(t, files)
			},
			least: 2,
		},
	}
	for name, s := range steps {
		t.Run(name, func(t *testing.T) {
			for left := 0; ; left++ {
				n := newTestNode(t)
				n.has("10-pods.conflist", bridge)
				s.before(t, n)
				k := &killed{left: left}
				n.disk = k
				s.do(t, n)
				n.loads()
				finished := k.left >= 0
				n.disk = realDisk{}
				s.do(t, n)
				s.after(t, n)
				if finished {
					require.GreaterOrEqual(t, k.all, s.least)
					return
				}
			}
		})
	}
}

const single2 = `{"cniVersion": "0.4.0", "name": "pods", "plugins": [{"type": "calico"}]}`

// The plugin's binary is left alone while a runtime may call it for the end of pods.
func TestUninstall(t *testing.T) {
	n := newTestNode(t)
	removed, err := Uninstall(n.Paths, "/run/sock", n.run)
	require.NoError(t, err)
	require.Empty(t, removed)

	n.has("10-pods.conflist", bridge)
	n.install()
	for _, tc := range []struct {
		runtime string
		kept    bool
	}{{"containerd", false}, {"crio", true}} {
		n.install()
		require.NoError(t, cnifile.Write(n.run, &cnifile.Attachment{
			Container: "c1", IfName: "eth0", Namespace: "prod", Pod: "web", Reason: "none",
			Addrs: addrs("10.0.0.1"), Runtime: tc.runtime,
		}))
		removed, err = Uninstall(n.Paths, "/run/sock", n.run)
		require.NoError(t, err)
		if tc.kept {
			require.Equal(t, []string{n.file()}, removed)
			require.FileExists(t, n.Binary())
		} else {
			require.Equal(t, []string{n.file(), n.Binary()}, removed)
		}
		require.Equal(t, []string{"bridge", "portmap"}, types(n.loads()))
	}
	require.NoError(t, cnifile.Remove(n.run, "c1", "eth0"))
	removed, err = Uninstall(n.Paths, "/run/sock", n.run)
	require.NoError(t, err)
	require.Equal(t, []string{n.Binary()}, removed)
}
