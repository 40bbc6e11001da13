// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/ctmap"
	"github.com/sluice-net/sluice/bpf/natmap"
)

// Names of maps that are no connections or translations.
const (
	MetricsMap = programsMapSluiceMetrics
	EventsMap  = programsMapSluiceEvents
)

// Sizes are the sizes of the maps that the programs write: entries, and for the
// buffer of events bytes.
type Sizes struct {
	CTTCP     uint32
	CTAny     uint32
	NAT       uint32
	Fragments uint32
	Events    uint32 // a power of two, at least a page
	Ledger    uint32 // the same; 0: there is no ledger
}

// byName are the sizes by the names of maps.
func (s Sizes) byName() map[string]uint32 {
	return map[string]uint32{
		ctmap.CT4TCP: s.CTTCP, ctmap.CT6TCP: s.CTTCP,
		ctmap.CT4Any: s.CTAny, ctmap.CT6Any: s.CTAny,
		natmap.Name4: s.NAT, natmap.Name6: s.NAT,
		ctmap.Frag4: s.Fragments, ctmap.Frag6: s.Fragments,
		EventsMap:      s.Events,
		bpf.PortsMap:   s.NAT,
		bpf.SharesMap:  0, // as they are declared, as those that follow
		bpf.PathsMap:   0,
		bpf.VotesMap:   0,
		bpf.VotersMap:  0,
		bpf.ToldMap:    0,
		bpf.MissingMap: 0,
		bpf.LedgerMap:  s.Ledger,
	}
}

// copiers write the entries of maps to maps of another size. What metrics and
// events hold is not worth it.
var copiers = map[string]bpf.Copier{
	ctmap.CT4TCP:  bpf.CopyEntries[ctmap.Key4, ctmap.Entry],
	ctmap.CT4Any:  bpf.CopyEntries[ctmap.Key4, ctmap.Entry],
	ctmap.CT6TCP:  bpf.CopyEntries[ctmap.Key6, ctmap.Entry],
	ctmap.CT6Any:  bpf.CopyEntries[ctmap.Key6, ctmap.Entry],
	natmap.Name4:  bpf.CopyEntries[natmap.Key4, natmap.Entry4],
	natmap.Name6:  bpf.CopyEntries[natmap.Key6, natmap.Entry6],
	ctmap.Frag4:   bpf.CopyEntries[ctmap.FragKey4, ctmap.FragValue],
	ctmap.Frag6:   bpf.CopyEntries[ctmap.FragKey6, ctmap.FragValue],
	bpf.PortsMap:  bpf.CopyEntries[bpf.PortKey, bpf.ShareValue],
	bpf.SharesMap: bpf.CopyEntries[bpf.ShareKey, bpf.ShareValue],
	bpf.PathsMap:  bpf.CopyEntries[bpf.NodeKey, bpf.PathValue],
	bpf.VotesMap:  bpf.CopyEntries[bpf.ExitKey, bpf.VotesValue],
	bpf.VotersMap: bpf.CopyEntries[uint32, bpf.VotersValue],
	bpf.ToldMap:   bpf.CopyEntries[bpf.ExitKey, bpf.ToldValue],
}

// Options say what to load the programs with.
type Options struct {
	// Maps are the agent's maps by name. Those that are missing are created, and are
	// empty.
	Maps map[string]*ebpf.Map

	// Dir is the directory where the programs' own maps are pinned; empty: they
	// are not.
	Dir string

	Sizes Sizes // of the programs' own maps; 0: as they are declared
	Log   *slog.Logger
}

// Datapath are the programs and the maps that they write. It is empty until the
// agent has started, and stays so if its maps are in memory.
type Datapath struct {
	loaded atomic.Pointer[ebpf.Collection]
	ledger bool
}

// Load loads the programs. A pinned map of other properties than it has to have
// is replaced; its entries are kept, as far as they fit, if only the size is
// another. Programs of an earlier run go on with the former map until they are
// replaced.
func Load(opts Options) (*Datapath, error) {
	d := &Datapath{}
	if err := d.load(opts); err != nil {
		return nil, err
	}
	return d, nil
}

func (d *Datapath) load(opts Options) error {
	spec, err := loadPrograms()
	if err != nil {
		return fmt.Errorf("read programs: %w", err)
	}
	if err := limitReading(spec); err != nil {
		return err
	}
	d.ledger = opts.Sizes.Ledger > 0
	if err := spec.Variables[bpf.LedgerOn].Set(d.ledger); err != nil {
		return fmt.Errorf("set %s: %w", bpf.LedgerOn, err)
	}
	replacements, own, err := prepareMaps(spec, opts)
	if err != nil {
		return err
	}
	collection, err := ebpf.NewCollectionWithOptions(
		spec, ebpf.CollectionOptions{MapReplacements: replacements},
	)
	if err != nil {
		return errors.Join(loadError(err), closeAll(own))
	}
	if err := setRooms(collection); err != nil {
		collection.Close()
		return errors.Join(err, closeAll(own))
	}
	d.loaded.Store(collection)
	return closeAll(own) // the collection has its own references
}

// limited are the maps whose room pods share, by their numbers in [bpf.ShareKey].
var limited = [bpf.LimitedMaps]string{
	ctmap.CT4TCP, ctmap.CT4Any, ctmap.CT6TCP, ctmap.CT6Any, natmap.Name4, natmap.Name6,
}

// setRooms tells the programs how large the maps are whose room pods share.
func setRooms(c *ebpf.Collection) error {
	var rooms [bpf.LimitedMaps]uint32
	for i, name := range limited {
		rooms[i] = c.Maps[name].MaxEntries()
	}
	return bpf.SetRooms(c.Maps[bpf.SharesMap], rooms)
}

// limitReading has the programs do without reading the kernel's memory where that is locked down:
// then they do not know which packets the host has translated.
func limitReading(spec *ebpf.CollectionSpec) error {
	if !errors.Is(features.HaveProgramHelper(ebpf.SchedCLS, asm.FnProbeReadKernel), ebpf.ErrNotSupported) {
		return nil
	}
	if err := spec.Variables["reads_kernel"].Set(false); err != nil {
		return fmt.Errorf("set reads_kernel: %w", err)
	}
	return nil
}

// prepareMaps sets the sizes of the maps in a description of the programs, and
// returns those that exist already: the agent's, and its own, which it opens.
func prepareMaps(
	spec *ebpf.CollectionSpec, opts Options,
) (replacements map[string]*ebpf.Map, own []*ebpf.Map, err error) {
	replacements = map[string]*ebpf.Map{}
	sizes := opts.Sizes.byName()
	for name, m := range spec.Maps {
		pinned := m.Pinning == ebpf.PinByName
		m.Pinning = ebpf.PinNone
		if !pinned {
			if given := opts.Maps[name]; given != nil {
				replacements[name] = given
				m.MaxEntries = given.MaxEntries()
			}
			continue
		}
		if sizes[name] != 0 {
			m.MaxEntries = sizes[name]
		}
		if opts.Dir == "" {
			continue
		}
		if isOfLedger(name) && opts.Sizes.Ledger == 0 {
			// That of a ledger which was switched off would keep its memory.
			err := os.Remove(filepath.Join(opts.Dir, name))
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, nil, errors.Join(fmt.Errorf("remove pin of map %s: %w", name, err), closeAll(own))
			}
			continue
		}
		opened, err := bpf.OpenPinned(opts.Dir, m, copiers[name], opts.Log)
		if err != nil {
			return nil, nil, errors.Join(err, closeAll(own))
		}
		own = append(own, opened)
		replacements[name] = opened
	}
	return replacements, own, nil
}

func closeAll(maps []*ebpf.Map) error {
	var errs []error
	for _, m := range maps {
		errs = append(errs, m.Close())
	}
	return errors.Join(errs...)
}

// verifierLines is how much of what the verifier says is in an error: its
// complaint is at the end, after the instructions that led to it.
const verifierLines = 15

// loadError makes an error of loading programs a readable one.
func loadError(err error) error {
	var verifier *ebpf.VerifierError
	if !errors.As(err, &verifier) {
		return fmt.Errorf("load programs: %w", err)
	}
	log := verifier.Log[max(0, len(verifier.Log)-verifierLines):]
	text := ""
	for _, line := range log {
		text += "\n\t" + line
	}
	return fmt.Errorf(
		"load programs: the kernel's verifier refuses one: %w; the last of what it said:%s", err, text,
	)
}

// Loaded reports whether there are programs. There are none while the agent has
// not started, and if its maps are in memory.
func (d *Datapath) Loaded() bool { return d.loaded.Load() != nil }

// Program returns a program, nil unless they are loaded.
func (d *Datapath) Program(p bpf.Program) *ebpf.Program {
	if c := d.loaded.Load(); c != nil {
		return c.Programs[p.String()]
	}
	return nil
}

// Map returns a map that the programs use by its name: their own or the agent's.
// It is nil unless they are loaded, and must not be closed.
func (d *Datapath) Map(name string) *ebpf.Map {
	if c := d.loaded.Load(); c != nil {
		return c.Maps[name]
	}
	return nil
}

// Pinned returns a map of the programs that is pinned: those of a ledger that is off are not.
func (d *Datapath) Pinned(name string) *ebpf.Map {
	if isOfLedger(name) && !d.ledger {
		return nil
	}
	return d.Map(name)
}

func isOfLedger(name string) bool { return name == bpf.LedgerMap || name == bpf.MissingMap }

// Events returns the ring buffer of [bpf.Event], nil unless programs are loaded.
func (d *Datapath) Events() *ebpf.Map { return d.Map(EventsMap) }

// Metrics returns the array of [bpf.Metric] per CPU, nil unless programs are loaded.
func (d *Datapath) Metrics() *ebpf.Map { return d.Map(MetricsMap) }

// Ledger returns the maps of the ledger, nil unless programs are loaded that write one.
func (d *Datapath) Ledger() *bpf.Ledger {
	if c := d.loaded.Load(); c != nil && d.ledger {
		return &bpf.Ledger{
			Records: c.Maps[bpf.LedgerMap], Missing: c.Maps[bpf.MissingMap],
			NAT4: c.Maps[natmap.Name4], NAT6: c.Maps[natmap.Name6],
		}
	}
	return nil
}

// Close releases programs and maps. What is attached and pinned stays.
func (d *Datapath) Close() error {
	if c := d.loaded.Swap(nil); c != nil {
		c.Close()
	}
	return nil
}
