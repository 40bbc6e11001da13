// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/stretchr/testify/require"
	vn "github.com/vishvananda/netlink"

	"github.com/sluice-net/sluice/cmd/cluster/kubernetes"
)

// nodeState is what an agent could leave on a node, by what it is.
type nodeState struct {
	Pins     []string          // in the BPF file system
	Devices  []string          // without those of pods
	Programs map[string]int    // attached, by device and attach type
	Files    map[string]string // contents by path
	Sysctls  map[string]string // of the network namespace
	Rules    string            // routing rules
}

// stateDirs are where Sluice could leave files.
var stateDirs = []string{"/var/lib/sluice", "/run/sluice", "/etc/cni", "/opt/cni", "/run/cilium"}

func readNodeState(t *testing.T, node *kubernetes.Node) nodeState {
	t.Helper()
	s := nodeState{
		Programs: map[string]int{}, Files: map[string]string{}, Sysctls: map[string]string{},
	}
	walk(t, node.Path("/sys/fs/bpf"), func(path string) {
		s.Pins = append(s.Pins, strings.TrimPrefix(path, node.Path("/")))
	})
	for _, dir := range stateDirs {
		walk(t, node.Path(dir), func(path string) {
			text, err := os.ReadFile(path)
			if err != nil { // a socket, or a link to what only the node has
				text = []byte("not a regular file")
			}
			s.Files[strings.TrimPrefix(path, node.Path("/"))] = string(text)
		})
	}
	var err error
	s.Rules, err = node.Run(t.Context(), "ip", "rule")
	require.NoError(t, err)
	require.NoError(t, node.InNetwork(func() error { return s.readDevices() }))
	s.readSysctls(t, node)
	return s
}

// walk calls f for what is below a directory, if there is one, and no directory.
func walk(t *testing.T, root string, f func(path string)) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case os.IsNotExist(err):
			return nil
		case err == nil && !entry.IsDir():
			f(path)
		}
		return err
	}))
}

// attachTypes are where programs are attached to a device.
var attachTypes = map[string]ebpf.AttachType{
	"tcx ingress": ebpf.AttachTCXIngress, "tcx egress": ebpf.AttachTCXEgress,
}

// readDevices reads devices of the calling thread's network, and what is attached to them.
func (s *nodeState) readDevices() error {
	devices, err := vn.LinkList()
	if err != nil {
		return err
	}
	for _, device := range devices {
		name := device.Attrs().Name
		if isPodDevice(name) {
			name = "device of a pod"
		} else {
			s.Devices = append(s.Devices, name)
		}
		for what, attach := range attachTypes {
			query := link.QueryOptions{Target: device.Attrs().Index, Attach: attach}
			programs, err := link.QueryPrograms(query)
			if err != nil {
				return fmt.Errorf("query %s of %s: %w", what, name, err)
			}
			s.Programs[name+" "+what] += len(programs.Programs)
		}
		for _, parent := range []uint32{vn.HANDLE_MIN_INGRESS, vn.HANDLE_MIN_EGRESS} {
			filters, err := vn.FilterList(device, parent)
			if err != nil {
				return fmt.Errorf("list filters of %s: %w", name, err)
			}
			s.Programs[name+" filters"] += len(filters)
		}
	}
	return nil
}

// isPodDevice reports whether a CNI plugin has named a device.
func isPodDevice(name string) bool { return strings.HasPrefix(name, "veth") }

// readSysctls reads the parameters of the node's network, those of pods' devices left out.
func (s *nodeState) readSysctls(t *testing.T, node *kubernetes.Node) {
	t.Helper()
	text, err := node.Run(t.Context(), "sh", "-c",
		"grep -rs . /proc/sys/net/ipv4 /proc/sys/net/ipv6 /proc/sys/net/core || true") // some cannot be read
	require.NoError(t, err)
	for line := range strings.Lines(text) {
		path, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		if device := filepath.Base(filepath.Dir(path)); !isPodDevice(device) {
			s.Sysctls[path] = value
		}
	}
}
