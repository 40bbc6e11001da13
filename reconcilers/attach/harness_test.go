// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/hive/hivetest"
	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"
	vn "github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/datapath"
	"github.com/sluice-net/sluice/tables"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func requirePrivileges(t testing.TB) {
	const reason = "needs root to make network namespaces and attach programs"
	switch {
	case os.Geteuid() == 0:
	case os.Getenv("SLUICE_REQUIRE_PRIVILEGED") != "":
		t.Fatal(reason)
	default:
		t.Skip(reason)
	}
}

// testBPFFS returns the path of a BPF file system of the test's own.
func testBPFFS(t testing.TB) string {
	requirePrivileges(t)
	path := filepath.Join(t.TempDir(), "bpffs")
	require.NoError(t, bpf.Probe(path))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(path, unix.MNT_DETACH)) })
	return path
}

func testLog(t testing.TB) *slog.Logger {
	return hivetest.Logger(t, hivetest.LogLevel(slog.LevelError))
}

// network is a network namespace of a test.
type network struct {
	*vn.Handle
	t  testing.TB
	ns netns.NsHandle
}

func newNetwork(t testing.TB) *network {
	t.Helper()
	requirePrivileges(t)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	host, err := netns.Get()
	require.NoError(t, err)
	defer host.Close()
	ns, err := netns.New()
	require.NoError(t, err)
	require.NoError(t, netns.Set(host))
	handle, err := vn.NewHandleAt(ns, unix.NETLINK_ROUTE)
	require.NoError(t, err)
	t.Cleanup(func() {
		handle.Close()
		ns.Close()
	})
	return &network{Handle: handle, t: t, ns: ns}
}

// do calls f in the namespace.
func (n *network) do(f func()) {
	n.t.Helper()
	require.NoError(n.t, namespace(n.ns).do(func() error { f(); return nil }))
}

func (n *network) link(name string) vn.Link {
	n.t.Helper()
	l, err := n.LinkByName(name)
	require.NoError(n.t, err)
	return l
}

// addVeth makes a pair of devices and returns the index of the first. With
// another index than 0 it gets that.
func (n *network) addVeth(name, peer string, index int) int {
	n.t.Helper()
	attrs := vn.NewLinkAttrs()
	attrs.Name, attrs.Index = name, index
	require.NoError(n.t, n.LinkAdd(&vn.Veth{LinkAttrs: attrs, PeerName: peer}))
	return n.link(name).Attrs().Index
}

func (n *network) removeDevice(name string) {
	n.t.Helper()
	require.NoError(n.t, n.LinkDel(n.link(name)))
}

// programs returns the numbers of the programs at a device, in their order.
func (n *network) running(ifIndex int, at ebpf.AttachType) (ids []ebpf.ProgramID) {
	n.t.Helper()
	n.do(func() {
		result, err := link.QueryPrograms(link.QueryOptions{Target: ifIndex, Attach: at})
		require.NoError(n.t, err)
		for _, p := range result.Programs {
			ids = append(ids, p.ID)
		}
	})
	return ids
}

func loadPrograms(t testing.TB) *datapath.Datapath {
	d, err := datapath.Load(datapath.Options{Log: testLog(t)})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	return d
}

func programID(t testing.TB, p *ebpf.Program) ebpf.ProgramID {
	info, err := p.Info()
	require.NoError(t, err)
	id, ok := info.ID()
	require.True(t, ok)
	return id
}

// setup is a network with the operations of an agent on it.
type setup struct {
	*network
	*attachments
	db       *statedb.DB
	programs func(bpf.Program) *ebpf.Program // of the present agent
	dir      string
	pinned   string            // directory of programs
	reported map[int]time.Time // devices
	seeded   int
}

func newSetup(t testing.TB) *setup {
	bpffs := testBPFFS(t)
	s := &setup{network: newNetwork(t), dir: bpf.LinksDir(bpffs), pinned: bpf.ProgramsDir(bpffs)}
	s.restart()
	return s
}

// restart puts another agent in the place of the one there is.
func (s *setup) restart() {
	s.db = statedb.New()
	table, err := tables.NewAttachmentTable(s.db)
	require.NoError(s.t, err)
	slots, err := tables.NewSlotTable(s.db) // initialized: they have flipped
	require.NoError(s.t, err)
	s.attachments = &attachments{
		datapath: loadPrograms(s.t),
		links:    func() links { return links{dir: s.dir, programs: s.pinned, ns: namespace(s.ns)} },
		seed:     func(int) { s.seeded++ },
		table:    table,
		slots:    slots,
		memory:   func() *bpf.Memory { return nil },
		reported: func() (map[int]time.Time, error) { return s.reported, nil },
	}
	s.programs = s.attachments.datapath.Program
}

func (s *setup) attach(ifIndex int, p bpf.Program) (*tables.Attachment, error) {
	row := &tables.Attachment{IfIndex: ifIndex, Program: p}
	return row, s.Update(s.t.Context(), s.db.ReadTxn(), 0, row)
}

func (s *setup) mustAttach(ifIndex int, p bpf.Program) *tables.Attachment {
	s.t.Helper()
	row, err := s.attach(ifIndex, p)
	require.NoError(s.t, err)
	require.NotZero(s.t, row.LinkID)
	return row
}

func (s *setup) pins() []string {
	s.t.Helper()
	names, err := bpf.PinnedLinks(s.dir)
	require.NoError(s.t, err)
	return names
}
