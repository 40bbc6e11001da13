// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/statedb/reconciler"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

const overlayDevice = "sluice_vxlan"

// place is where a program runs: at a device in one direction, or at the
// forwarding hook of a protocol family.
type place struct {
	program string
	device  int // 0 for the hook
	at      string
}

func (p place) String() string { return fmt.Sprintf("%s at device %d %s", p.program, p.device, p.at) }

// programs returns the links of all programs that run, by system calls: those at
// devices as the kernel tells for the device. Each has to be pinned.
func (k *kernel) programs(n *network) (map[place]link.ID, error) {
	running, pinned, err := k.hooked()
	if err != nil { // a pin left while the pins were read
		return nil, err
	}
	for _, d := range n.devices {
		err = errors.Join(err, queryPrograms(d.index, running))
	}
	for p, id := range running {
		if !pinned[id] {
			err = errors.Join(err, fmt.Errorf("link %d of %s is not pinned", id, p))
		}
	}
	return running, err
}

// queryPrograms adds the links of the programs at a device.
func queryPrograms(device int, running map[place]link.ID) error {
	for at, direction := range map[string]ebpf.AttachType{"ingress": ebpf.AttachTCXIngress, "egress": ebpf.AttachTCXEgress} {
		found, err := link.QueryPrograms(link.QueryOptions{Target: device, Attach: direction})
		if err != nil {
			return fmt.Errorf("query programs of device %d: %w", device, err)
		}
		for _, p := range found.Programs {
			name, err := programName(p.ID)
			if errors.Is(err, fs.ErrNotExist) { // it was replaced just now
				return queryPrograms(device, running)
			} else if err != nil {
				return err
			}
			id, _ := p.LinkID()
			running[place{name, device, at}] = id
		}
	}
	return nil
}

// hooked returns the pinned links, and of them those at the forwarding hooks.
func (k *kernel) hooked() (running map[place]link.ID, pinned map[link.ID]bool, err error) {
	running, pinned = map[place]link.ID{}, map[link.ID]bool{}
	pins, err := os.ReadDir(k.links)
	if errors.Is(err, fs.ErrNotExist) {
		return running, pinned, nil
	}
	for _, pin := range pins {
		l, loadErr := link.LoadPinnedLink(filepath.Join(k.links, pin.Name()), nil)
		if loadErr != nil {
			return nil, nil, loadErr
		}
		info, infoErr := l.Info()
		err = errors.Join(err, infoErr, l.Close())
		if err != nil {
			return nil, nil, err
		}
		pinned[info.ID] = true
		if hook := info.Netfilter(); hook != nil {
			name, err := programName(info.Program)
			if err != nil {
				return nil, nil, err
			}
			running[place{program: name, at: fmt.Sprint("family ", hook.ProtocolFamily)}] = info.ID
		}
	}
	return running, pinned, err
}

func programName(id ebpf.ProgramID) (string, error) {
	program, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return "", fmt.Errorf("open program %d: %w", id, err)
	}
	defer program.Close()
	info, err := program.Info()
	if err != nil {
		return "", fmt.Errorf("look at program %d: %w", id, err)
	}
	return info.Name, nil
}

// programs returns what runs now.
func (a *agent) programs(k *kernel) (running map[place]link.ID) {
	a.t.Helper()
	a.eventually("the programs can be listed", func() error {
		n, err := loadNetwork()
		if err == nil {
			running, err = k.programs(n)
		}
		return err
	})
	return running
}

// awaitAttached waits until the agent has attached its programs, and let go of those
// that it replaced by another link.
func (a *agent) awaitAttached() {
	a.t.Helper()
	a.eventually("the programs are attached", func() error {
		var dump map[string][]struct {
			Program string            `json:"program"`
			Status  reconciler.Status `json:"status"`
		}
		require.Equal(a.t, http.StatusOK, a.decode("/statedb/dump/attachments", &dump))
		found := false
		for _, row := range dump["attachments"] {
			if row.Status.Kind != reconciler.StatusKindDone {
				return fmt.Errorf("%s: %s", row.Program, row.Status)
			}
			found = found || row.Program == bpf.ProgramBackstop.String()
		}
		if !found {
			return errors.New("the backstop is not wanted yet")
		}
		return nil
	})
}

// atDevices leaves out what a new agent has to replace by another link.
func atDevices(running map[place]link.ID) map[place]link.ID {
	running = maps.Clone(running)
	maps.DeleteFunc(running, func(p place, _ link.ID) bool { return p.device == 0 })
	return running
}

// comparePrograms says where programs do not run that should, and where others do.
func (w *world) comparePrograms(k *kernel, c contents) error {
	want := map[place]bool{
		{"backstop", 0, fmt.Sprint("family ", link.NetfilterProtoIPv4)}: true,
		{"backstop", 0, fmt.Sprint("family ", link.NetfilterProtoIPv6)}: true,
	}
	overlay := w.net.device(overlayDevice)
	if overlay == nil {
		return fmt.Errorf("there is no device %s", overlayDevice)
	}
	want[place{"from_overlay", overlay.index, "ingress"}] = true
	for _, pod := range c.Pods {
		if pod.IfIndex != 0 {
			want[place{"from_pod", int(pod.IfIndex), "ingress"}] = true
			want[place{"to_pod", int(pod.IfIndex), "egress"}] = true
		}
	}
	for _, exit := range c.Exits {
		want[place{"from_netdev", int(exit.IfIndex), "ingress"}] = true
		want[place{"to_netdev", int(exit.IfIndex), "egress"}] = true
	}
	used := map[int]bool{}
	for p := range want {
		used[p.device] = true
	}
	for _, d := range w.net.devices { // replies come by any of these
		global := func(a address) bool { return a.global }
		if len(c.Exits) > 0 && !used[d.index] && slices.ContainsFunc(d.addrs, global) &&
			!tables.IsWithinNode(d.names[0]) {
			want[place{"from_netdev", d.index, "ingress"}] = true
		}
	}
	running, err := k.programs(w.net)
	if err != nil {
		return err
	}
	got := map[place]bool{}
	for p := range running {
		got[p] = true
	}
	return different("programs", want, got)
}

func (n *network) device(name string) *device {
	for i, d := range n.devices {
		if slices.Contains(d.names, name) {
			return &n.devices[i]
		}
	}
	return nil
}

// covered is what sluice_covered is to hold.
func (w *world) covered() map[bpf.CoveredKey]bpf.CoveredValue {
	covered := map[bpf.CoveredKey]bpf.CoveredValue{}
	for _, p := range w.policies {
		for _, to := range p.to {
			covered[bpf.CoveredKeyFrom(to)] = bpf.CoveredValue{Covered: 1}
		}
	}
	return covered
}

// aliveNodes is what sluice_nodes is to hold.
func (w *world) aliveNodes() map[bpf.NodeKey]bpf.NodeValue {
	nodes := map[bpf.NodeKey]bpf.NodeValue{}
	claim := func(name string, addrs []netip.Addr) {
		n := w.node(name)
		for _, a := range addrs {
			key := bpf.NodeKey{Addr: bpf.AddressFrom(a)}
			value := nodes[key]
			if n != nil && n.ready {
				value.Flags |= bpf.NodeAlive
			}
			nodes[key] = value
		}
	}
	for _, n := range w.nodes {
		claim(n.name, n.internal)
	}
	for _, n := range w.cilium {
		claim(n.name, n.addrs)
	}
	return nodes
}

// compareExits says which addresses of gateways are no exits, and which exits
// are no addresses of the node. Those of former gateways stay.
func (w *world) compareExits(c contents) (err error) {
	ways := ways{}
	for _, value := range c.Gateways {
		ways[value] = true
	}
	for way := range ways {
		for _, a := range []netip.Addr{netip.AddrFrom4(way.Egress4), way.Egress6.Addr()} {
			exit := c.Exits[bpf.ExitKey{Addr: bpf.AddressFrom(a)}]
			if a.IsValid() && !a.IsUnspecified() && exit.IfIndex != way.IfIndex {
				err = errors.Join(err, fmt.Errorf("traffic leaves with %s by device %d, the exit is %v", a, way.IfIndex, exit))
			}
		}
	}
	for key, value := range c.Exits {
		addr := key.Addr.Addr()
		want := bpf.ExitValue{}
		for _, d := range w.net.devices {
			if slices.ContainsFunc(d.addrs, func(a address) bool { return a.Addr == addr }) {
				want.IfIndex = uint32(d.index)
				if w.usedByNode(addr, d) {
					want.Flags = bpf.ExitShared
				}
			}
		}
		if value != want {
			err = errors.Join(err, fmt.Errorf("sluice_exits: %v is %v, should be %v", key, value, want))
		}
	}
	return err
}

// usedByNode reports whether the node itself sends from an address of a device.
func (w *world) usedByNode(addr netip.Addr, d device) bool {
	local := w.node(localNode)
	if w.net.sources[addr] || local != nil && slices.Contains(local.internal, addr) {
		return true
	}
	first := slices.IndexFunc(d.addrs, func(a address) bool { return a.global && a.BitLen() == addr.BitLen() })
	return first >= 0 && d.addrs[first].Addr == addr
}

// compareConfig says what the programs have been told wrongly.
func (w *world) compareConfig(c contents) error {
	got, found := c.Config[bpf.ConfigKey{}]
	if !found || len(c.Config) != 1 {
		return fmt.Errorf("sluice_config has %d entries", len(c.Config))
	}
	local, overlay := w.node(localNode), w.net.device(overlayDevice)
	if local == nil || overlay == nil {
		return fmt.Errorf("there is no node %s or no device %s", localNode, overlayDevice)
	}
	want := got
	want.Underlay, want.OverlayIfIndex = bpf.AddressFrom(local.underlay()), uint32(overlay.index)
	want.OverlayPort, want.VNI = 8474, 7
	want.MarkMask, want.MarkShift = 0x3000, 12
	want.Flags = bpf.ConfigStrictSource | bpf.ConfigBackstop | bpf.ConfigAllowLocalhost
	want.LifetimeTCP, want.LifetimeAny, want.LifetimeSYN, want.LifetimeClosing, want.ReportInterval = 8000, 60, 60, 10, 5
	return different("sluice_config", map[string]bpf.ConfigValue{"": want}, map[string]bpf.ConfigValue{"": got})
}

// requireRunning fails unless just these programs run, by these links.
func (a *agent) requireRunning(k *kernel, want map[place]link.ID) {
	a.t.Helper()
	require.Equal(a.t, want, a.programs(k))
}
