// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/ctmap"
	"github.com/sluice-net/sluice/bpf/datapath"
	"github.com/sluice-net/sluice/tables"
)

// seedInterval is how often the kernel's connections are read at most.
const seedInterval = time.Second

// seeder makes the connections of pods that the kernel's conntrack table has
// known to the programs: those that began before a pod's device had a program.
// Else their replies would look like connections that the pod begins.
//
// It leaves out pods whose interface the CNI plugin reported while the agent ran: these have
// had programs since before they sent anything, so what the kernel knows of their addresses
// is of earlier pods. A pod that is older and has no programs has run without.
type seeder struct {
	log      *slog.Logger
	ns       namespace
	datapath *datapath.Datapath
	again    chan struct{} // something was attached since the table was read

	// pods are those that the kernel is to have when their devices have programs.
	pods func() iter.Seq2[*tables.Pod, statedb.Revision]

	// reported returns when the CNI plugin reported each device.
	reported func() (map[int]time.Time, error)
	began    time.Time // of the agent

	mu     sync.Mutex
	bare   map[int]bool // devices that the plugin reported before, and that had no programs
	last   time.Time
	warned bool
}

func newSeeder(
	log *slog.Logger, ns namespace, d *datapath.Datapath,
	reported func() (map[int]time.Time, error),
) *seeder {
	return &seeder{
		log: log, ns: ns, datapath: d, reported: reported, began: time.Now(),
		bare: map[int]bool{}, again: make(chan struct{}, 1),
	}
}

// beforeAttach reads the connections before a program is attached to a device, unless that
// was done just now: then it is done once more after what is attached meanwhile.
func (s *seeder) beforeAttach(ifIndex int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if reported, err := s.reported(); err == nil && !reported[ifIndex].IsZero() {
		if reported[ifIndex].After(s.began) {
			return
		}
		s.bare[ifIndex] = true
	}
	if time.Since(s.last) >= seedInterval {
		s.seed()
		return
	}
	select {
	case s.again <- struct{}{}:
	default:
	}
}

// run reads the connections once more after each burst of attachments.
func (s *seeder) run(ctx context.Context, _ cell.Health) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.again:
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(seedInterval):
		}
		s.mu.Lock()
		s.seed()
		s.mu.Unlock()
	}
}

// seed is called with the lock held.
func (s *seeder) seed() {
	began := time.Now()
	seeded, err := s.write()
	s.last = time.Now()
	switch {
	case err != nil && !s.warned:
		s.warned = true
		s.log.Warn("Connections that began before their pods had programs are not known: those that egress policies concern may be cut",
			"error", err)
	case err == nil && seeded > 0:
		s.log.Info(
			"Took over connections from the kernel", "entries", seeded, "duration", s.last.Sub(began),
		)
	}
}

// write writes an entry for each direction of each connection of a local pod
// that has none, and returns how many that were.
func (s *seeder) write() (seeded int, err error) {
	if !s.datapath.Loaded() {
		return 0, nil
	}
	pods, err := s.concerned()
	if err != nil || len(pods) == 0 {
		return 0, err
	}
	w, err := newEntryWriter(s.datapath)
	if err != nil {
		return 0, err
	}
	if w.own, err = s.ns.addresses(); err != nil {
		return 0, err
	}
	err = dumpConntrack(s.ns, func(c connection) {
		if pod, ok := pods[c.near.Source.Addr()]; ok {
			w.add(c, c.near, ctmap.Out, pod)
		}
		if pod, ok := pods[c.far.Destination.Addr()]; ok {
			w.add(c, c.far, ctmap.In, pod)
		}
	})
	return w.written, errors.Join(err, w.err)
}

// concerned are the local pods whose connections may have begun before they had programs.
func (s *seeder) concerned() (map[netip.Addr]*tables.Pod, error) {
	reported, err := s.reported()
	if err != nil || s.pods == nil {
		return nil, err
	}
	pods := map[netip.Addr]*tables.Pod{}
	for row := range s.pods() {
		if index := int(row.IfIndex); row.Local && (reported[index].IsZero() || s.bare[index]) {
			pods[row.Addr] = row
		}
	}
	return pods, nil
}

// entryWriter writes entries of connections that are not there yet.
type entryWriter struct {
	datapath *datapath.Datapath
	config   bpf.ConfigValue
	own      map[netip.Addr]bool // addresses of this host
	now      uint32
	written  int
	err      error // the first, of a map
}

func newEntryWriter(d *datapath.Datapath) (*entryWriter, error) {
	w := &entryWriter{datapath: d}
	if err := d.Map(configMap).Lookup(bpf.ConfigKey{}, &w.config); err != nil {
		return nil, fmt.Errorf("read lifetimes: %w", err)
	}
	if w.config.LifetimeTCP == 0 {
		return nil, fmt.Errorf("read lifetimes: %s is not written yet", configMap)
	}
	now, err := ctmap.Now()
	w.now = now
	return w, err
}

const configMap = "sluice_config"

// add writes the entry of a connection as seen by a pod. It is of no generation: whether the
// connection may go on is judged at its next packet.
func (w *entryWriter) add(c connection, t ctmap.Tuple, flags ctmap.TupleFlags, pod *tables.Pod) {
	if pod.Subject == 0 && w.config.Flags&bpf.ConfigNetworkPolicies != 0 {
		return // held: the host knows flows that to_pod drops, and an entry would let them go on
	}
	entry, live := w.entry(c, t)
	if !live || w.err != nil {
		return
	}
	t.Flags = flags
	if flags == ctmap.In && w.own[c.near.Source.Addr()] { // and not one that it masquerades
		entry.Flags |= ctmap.OfHost
	}
	m := w.datapath.Map(ctmap.CTName(t.Is6(), t.Protocol))
	if t.Is6() {
		w.insert(m, ctmap.NewKey6(t), entry)
	} else {
		w.insert(m, ctmap.NewKey4(t), entry)
	}
}

// entry returns the entry of a connection. It is not live if
// both sides have closed it.
func (w *entryWriter) entry(c connection, t ctmap.Tuple) (e ctmap.Entry, live bool) {
	switch {
	case t.Protocol != unix.IPPROTO_TCP:
		e.Lifetime = w.now + w.config.LifetimeAny
	case c.tcpState == tcpSynSent || c.tcpState == tcpSynRecv:
		e.Lifetime = w.now + w.config.LifetimeSYN
	case c.tcpState >= tcpEstablished && c.tcpState <= tcpCloseWait:
		e.Flags, e.Lifetime = ctmap.SeenNonSYN, w.now+w.config.LifetimeTCP
	default:
		return e, false
	}
	return e, true
}

func (w *entryWriter) insert(m *ebpf.Map, key any, entry ctmap.Entry) {
	// Looked up first: to insert into a full map may evict another entry even
	// if it then finds that this one exists.
	var there ctmap.Entry
	err := m.Lookup(key, &there)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		err = m.Update(key, &entry, ebpf.UpdateNoExist)
		if err == nil {
			w.written++
		}
	}
	if err != nil && !errors.Is(err, ebpf.ErrKeyExist) {
		w.err = fmt.Errorf("write connection: %w", err)
	}
}
