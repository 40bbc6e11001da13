// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/fsnotify/fsnotify"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/cnifile"
	"github.com/sluice-net/sluice/tables/dirwatch"
)

const (
	// resyncTime is how often all files are read though nothing was noticed.
	resyncTime = 30 * time.Second

	// maxBatch bounds the files of one transaction.
	maxBatch = 1000
)

// follower keeps the rows those of the files.
type follower struct {
	db          *statedb.DB
	log         *slog.Logger
	dir         string
	watcher     dirwatch.Watcher
	table       statedb.RWTable[*tables.CNIAttachment]
	initialized func(statedb.WriteTxn) // nil once it is
}

func (f *follower) run(ctx context.Context, health cell.Health) error {
	defer f.watcher.Close()
	for {
		next := resyncTime
		unwatched, err := f.resync()
		switch {
		case err != nil:
			next = dirwatch.PollTime
			health.Degraded("Cannot read what the CNI plugin tells", err)
		case unwatched != nil:
			next = dirwatch.PollTime
			health.Degraded("Cannot watch what the CNI plugin tells: it is read each second", unwatched)
		default:
			health.OK(fmt.Sprintf("%d interfaces", f.table.NumObjects(f.db.ReadTxn())))
		}
		if more, err := f.follow(ctx, next); err != nil || !more {
			return err
		}
	}
}

// resync watches the directory, if that is possible, and then reads all of it: what
// happens after that is noticed. The rows stay while it cannot be read.
func (f *follower) resync() (unwatched, err error) {
	if err := os.MkdirAll(f.dir, 0o755); err != nil {
		return nil, fmt.Errorf("create directory of attachments: %w", err)
	}
	unwatched = f.watcher.Watch(f.dir)
	names, err := cnifile.List(f.dir)
	if err != nil {
		return unwatched, err
	}
	changed := make(map[string]bool, len(names))
	for _, name := range names {
		changed[name] = true
	}
	for row := range f.table.All(f.db.ReadTxn()) {
		changed[row.File] = true
	}
	return unwatched, f.take(changed)
}

// follow takes in files as they change, until it is time to read all of them. It
// returns false when the context ends.
func (f *follower) follow(ctx context.Context, next time.Duration) (more bool, err error) {
	timer := time.NewTimer(next)
	defer timer.Stop()
	for {
		changed := map[string]bool{}
		select {
		case <-ctx.Done():
			return false, nil
		case <-timer.C:
			return true, nil
		case <-f.watcher.Errors(): // such as too many events: something was missed
			return true, nil
		case ev := <-f.watcher.Events():
			if ev.Name == f.dir { // it was removed
				return true, nil
			}
			f.notice(ev, changed)
		}
		for queued := true; queued && len(changed) < maxBatch; {
			select {
			case ev := <-f.watcher.Events():
				f.notice(ev, changed)
			default:
				queued = false
			}
		}
		if err := f.take(changed); err != nil {
			return false, err
		}
	}
}

func (f *follower) notice(ev fsnotify.Event, changed map[string]bool) {
	if name := filepath.Base(ev.Name); cnifile.IsFile(name) && filepath.Dir(ev.Name) == f.dir {
		changed[name] = true
	}
}

// take reads the named files, and writes what has changed in one transaction.
func (f *follower) take(names map[string]bool) error {
	if len(names) == 0 && f.initialized == nil {
		return nil
	}
	rows := make(map[string]*tables.CNIAttachment, len(names))
	for name := range names {
		rows[name] = f.read(name)
	}
	wtxn := f.db.WriteTxn(f.table)
	defer wtxn.Abort()
	for name, row := range rows {
		old, _, found := f.table.Get(wtxn, tables.CNIAttachmentByFile(name))
		var err error
		switch {
		case row == nil && found:
			_, _, err = f.table.Delete(wtxn, old)
		case row != nil && !(found && reflect.DeepEqual(old, row)):
			if row.Error != "" {
				f.log.Warn("What the CNI plugin tells has a problem", "file", name, "error", row.Error)
			}
			_, _, err = f.table.Insert(wtxn, row)
		}
		if err != nil {
			return err
		}
	}
	if f.initialized != nil {
		f.initialized(wtxn)
		f.initialized = nil
	}
	wtxn.Commit()
	return nil
}

// read returns the row of a file, nil if there is no such file.
func (f *follower) read(name string) *tables.CNIAttachment {
	a, err := cnifile.Read(f.dir, name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return &tables.CNIAttachment{File: name, Error: err.Error()}
	}
	return &tables.CNIAttachment{
		File: name, Container: a.Container, IfName: a.IfName,
		Pod: tables.Name{Namespace: a.Namespace, Name: a.Pod}, UID: a.UID,
		Device: a.Device, IfIndex: a.IfIndex, MAC: a.MAC, Addrs: a.Addrs, Created: a.Created.UTC(),
		Error: a.Reason,
	}
}
