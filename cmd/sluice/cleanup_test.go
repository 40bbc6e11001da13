// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/stretchr/testify/require"
	vn "github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/datapath"
	"github.com/sluice-net/sluice/reconcilers/attach"
	"github.com/sluice-net/sluice/tables/cnifile"
)

// inNamespace has the rest of the test run in a network namespace of its own.
func inNamespace(t *testing.T) {
	const reason = "needs root to make network namespaces"
	if os.Geteuid() != 0 {
		if os.Getenv("SLUICE_REQUIRE_PRIVILEGED") != "" {
			t.Fatal(reason)
		}
		t.Skip(reason)
	}
	runtime.LockOSThread() // for good: the thread goes with the test
	ns, err := netns.New()
	require.NoError(t, err)
	t.Cleanup(func() { ns.Close() })
}

// What a killed agent left in the kernel goes, and nothing of others.
func TestCleanupOfKernel(t *testing.T) {
	inNamespace(t)
	dir := tempDir(t)
	bpffs := filepath.Join(dir, "bpffs")
	require.NoError(t, bpf.Probe(bpffs))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(bpffs, unix.MNT_DETACH)) })
	pins := filepath.Join(bpffs, "sluice")

	device := addDevice(t, &vn.Veth{PeerName: "eth0"}, "pod0")
	d, err := datapath.Load(datapath.Options{Dir: pins, Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	require.NoError(t, err)
	l, err := link.AttachTCX(link.TCXOptions{
		Interface: device.Attrs().Index, Program: d.Program(bpf.ProgramFromPod), Attach: ebpf.AttachTCXIngress,
	})
	require.NoError(t, err)
	name := fmt.Sprintf("from_pod_%d", device.Attrs().Index)
	require.NoError(t, os.Mkdir(filepath.Join(pins, "links"), 0o700))
	require.NoError(t, l.Pin(filepath.Join(pins, "links", name)))
	require.NoError(t, l.Close())
	_, err = bpf.PinProgram(bpf.ProgramsDir(bpffs), bpf.ProgramFromPod, d.Program(bpf.ProgramFromPod))
	require.NoError(t, err)
	require.NoError(t, d.Close())
	overlay := addDevice(t, &vn.Vxlan{FlowBased: true, Port: 8474}, "sluice_vxlan")
	require.NoError(t, vn.LinkSetAlias(overlay, attach.OverlayAlias))
	addDevice(t, &vn.Vxlan{FlowBased: true, Port: 4790}, "other")

	attached := func() int {
		result, err := link.QueryPrograms(link.QueryOptions{Target: device.Attrs().Index, Attach: ebpf.AttachTCXIngress})
		require.NoError(t, err)
		return len(result.Programs)
	}
	require.Equal(t, 1, attached())
	args := []string{"cleanup", "--bpffs=" + bpffs, "--state-dir=" + filepath.Join(dir, "state"), "--socket=" + filepath.Join(dir, "sluice.sock"),
		"--cni-conf-dir=" + filepath.Join(dir, "net.d"), "--cni-bin-dir=" + dir, "--cni-run-dir=" + filepath.Join(dir, "cni")}
	conf, binary := filepath.Join(dir, "net.d", "0-sluice.conflist"), filepath.Join(dir, "sluice-cni")
	require.NoError(t, os.Mkdir(filepath.Join(dir, "net.d"), 0o700))
	require.NoError(t, os.WriteFile(conf, fmt.Appendf(nil, `{"plugins": [{"type": "sluice-cni", "socket": "%s/sluice.sock"}]}`, dir), 0o600))
	require.NoError(t, os.WriteFile(binary, nil, 0o700))
	require.NoError(t, cnifile.Write(filepath.Join(dir, "cni"), &cnifile.Attachment{
		Container: "c1", IfName: "eth0", Namespace: "prod", Pod: "web", Reason: "none",
		Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, Runtime: "containerd",
	}))

	// Not while another agent has the maps.
	kernel, err := bpf.OpenKernel(bpffs, slog.New(slog.NewTextHandler(io.Discard, nil)))
	require.NoError(t, err)
	require.Equal(t, exitError, sluice(t, args...).code)
	require.Equal(t, 1, attached())
	_, err = vn.LinkByName("sluice_vxlan")
	require.NoError(t, err)
	require.NoError(t, kernel.Close())

	// Nor while another CNI configuration names the plugin: with that new pods need it all.
	other := filepath.Join(dir, "net.d", "00-multus.conflist")
	require.NoError(t, os.WriteFile(other, []byte(`{"type": "multus", "delegates": [{"type": "sluice-cni"}]}`), 0o600))
	r := sluice(t, args...)
	require.Equal(t, exitError, r.code)
	require.Contains(t, r.stderr, other+" has sluice-cni in it too")
	require.Empty(t, r.stdout)
	require.Equal(t, 1, attached())
	require.FileExists(t, conf)
	require.FileExists(t, binary)
	require.NoError(t, os.Remove(other))

	r = sluice(t, args...)
	require.Equal(t, exitOK, r.code, r.stderr)
	for _, line := range []string{
		"removed CNI plugin " + conf, "removed CNI plugin " + binary, "removed pinned program from_pod", "detached program " + name, "removed overlay device sluice_vxlan", "removed pin sluice_ct4_tcp", "removed pin sluice_events",
	} {
		require.Contains(t, r.stdout, line+"\n")
	}
	removed, detached := strings.Index(r.stdout, "removed overlay device"),
		strings.Index(r.stdout, "detached program")
	require.Less(t, removed, detached, "the overlay device is never without its program")
	require.Zero(t, attached())
	require.NoDirExists(t, pins)
	require.NoDirExists(t, filepath.Join(dir, "cni"))
	_, err = vn.LinkByName("sluice_vxlan")
	require.ErrorAs(t, err, &vn.LinkNotFoundError{})
	_, err = vn.LinkByName("other")
	require.NoError(t, err)
	require.Equal(t, "nothing to clean up\n", sluice(t, args...).stdout)
}

// addDevice makes a device and returns it as the kernel has it.
func addDevice(t *testing.T, device vn.Link, name string) vn.Link {
	*device.Attrs() = vn.NewLinkAttrs()
	device.Attrs().Name = name
	require.NoError(t, vn.LinkAdd(device))
	made, err := vn.LinkByName(name)
	require.NoError(t, err)
	return made
}
