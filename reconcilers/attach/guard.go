// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/datapath"
	"github.com/sluice-net/sluice/reconcilers/tampering"
	"github.com/sluice-net/sluice/tables"
)

// guardEvery is how often the kernel is asked whether programs run where attachments says so.
const guardEvery = time.Second

// guard has programs attached again that something else has detached or replaced, or whose pins
// are gone. Their rows are pending meanwhile, and say why.
type guard struct {
	db          *statedb.DB
	attachments statedb.RWTable[*tables.Attachment]
	links       func() links
	datapath    *datapath.Datapath
	tampering   *tampering.Recorder
}

func (g *guard) run(ctx context.Context, health cell.Health) error {
	timer := time.NewTicker(guardEvery)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		if !g.datapath.Loaded() {
			continue
		}
		switch bad, behind, err := g.check(); {
		case err != nil:
			health.Degraded("Cannot see whether programs are attached", err)
		case bad != "":
			health.Degraded("Something else has detached programs", errors.New(bad))
		case behind != "":
			health.Degraded("Something else sees packets before the programs", errors.New(behind))
		default:
			health.OK("All programs run where they were attached")
		}
	}
}

// finding is what is wrong with an attachment.
type finding struct {
	row      *tables.Attachment
	revision statedb.Revision
	kind     string // one of tables.Tampered*
	text     string
	behind   uint32 // number of the program that runs before, if there is one
}

// check compares the attachments that are done with the kernel, and returns what is wrong with
// one of them, and which has another program before it.
func (g *guard) check() (bad, behind string, err error) {
	var done []finding
	for row, revision := range g.attachments.All(g.db.ReadTxn()) {
		if row.LinkID != 0 && row.Origin != tables.FormerAttachment &&
			row.Status.Kind == reconciler.StatusKindDone {
			done = append(done, finding{row: row, revision: revision})
		}
	}
	l := g.links()
	pins, err := l.names()
	if err != nil {
		return "", "", err
	}
	slices.Sort(pins)
	for i := range done {
		f := &done[i]
		if f.row.Program == bpf.ProgramBackstop {
			err = l.inspectBackstop(f, pins, g.datapath.Program(f.row.Program))
		}
		if err != nil {
			return "", "", err
		}
	}
	// One entry of the namespace does for all.
	err = l.ns.do(func() error {
		for i := range done {
			if f := &done[i]; f.row.Program != bpf.ProgramBackstop {
				if err := l.inspect(f, pins, g.datapath.Program(f.row.Program)); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		return "", "", err
	}
	return g.report(done)
}

// inspect looks at a program of a device. It runs in the devices' network namespace.
func (l links) inspect(f *finding, pins []string, program *ebpf.Program) error {
	wanted, err := idOf(program)
	if err != nil {
		return err
	}
	at, err := link.QueryPrograms(link.QueryOptions{
		Target: f.row.IfIndex, Attach: bpf.AttachTypeOf(f.row.Program),
	})
	if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EINVAL) {
		return nil // the device is gone: its row will be
	}
	if err != nil {
		return fmt.Errorf("list programs at device %s: %w", f.row.Device, err)
	}
	i := slices.IndexFunc(at.Programs, func(p link.AttachedProgram) bool {
		id, ok := p.LinkID()
		return ok && uint32(id) == f.row.LinkID
	})
	_, pinned := slices.BinarySearch(pins, pinName(f.row.IfIndex, f.row.Program))
	switch {
	case !pinned:
		f.kind, f.text = tables.TamperedUnpinned, "its link has lost its pin"
	case i < 0:
		f.kind, f.text = tables.TamperedDetached, "its link was detached"
	case at.Programs[i].ID != wanted:
		f.kind = tables.TamperedReplaced
		f.text = fmt.Sprintf("program %d was put into its link", at.Programs[i].ID)
	case i > 0:
		f.behind = uint32(at.Programs[0].ID)
	}
	return nil
}

// inspectBackstop looks at the links of the backstop.
func (l links) inspectBackstop(f *finding, pins []string, program *ebpf.Program) error {
	for _, h := range hooks {
		_, pin, err := l.findBackstop(h, pins, program)
		if err != nil {
			return err
		}
		if pin == "" {
			f.kind, f.text = tables.TamperedUnpinned, "a link has lost its pin: "+h.name
		} else if priority, _ := h.priority(pin); !l.isTaken(h, priority, program) {
			f.kind, f.text = tables.TamperedDetached, "a link was detached: "+h.name
		}
	}
	return nil
}

func idOf(program *ebpf.Program) (ebpf.ProgramID, error) {
	info, err := program.Info()
	if err != nil {
		return 0, fmt.Errorf("look at program: %w", err)
	}
	id, _ := info.ID()
	return id, nil
}

// report has what is wrong put right, and tells of it. A row that changed meanwhile is looked at
// the next time.
func (g *guard) report(all []finding) (bad, behind string, err error) {
	wtxn := g.db.WriteTxn(g.attachments)
	defer wtxn.Abort()
	told, changed := map[tables.TamperingID][]string{}, false
	for _, f := range all {
		at := f.row.Program.String()
		if f.row.Device != "" {
			at += " at " + f.row.Device
		}
		if f.behind != 0 {
			behind = fmt.Sprintf("program %d runs before %s", f.behind, at)
		}
		if f.kind == "" && f.behind == f.row.Behind {
			continue
		}
		row := tables.Clone(f.row)
		row.Behind = f.behind
		if f.kind != "" {
			text := f.text + ": it is attached again"
			row.Status = reconciler.StatusPending()
			row.Status.Error = &text
		}
		_, _, err := g.attachments.CompareAndSwap(wtxn, f.revision, row)
		if errors.Is(err, statedb.ErrRevisionNotEqual) || errors.Is(err, statedb.ErrObjectNotFound) {
			continue
		}
		if err != nil {
			return "", "", fmt.Errorf("write %s: %w", g.attachments.Name(), err)
		}
		changed = true
		kind, text := f.kind, at+": "+f.text
		if kind == "" && f.behind != 0 {
			kind, text = tables.TamperedBehind, behind
		}
		if f.kind != "" {
			bad = text
		}
		if kind != "" {
			id := tables.TamperingID{Object: f.row.Program.String(), Kind: kind}
			told[id] = append(told[id], text)
		}
	}
	if changed {
		wtxn.Commit()
	}
	for id, texts := range told {
		g.tampering.Found(id.Object, id.Kind, len(texts), texts[0])
	}
	return bad, behind, nil
}
