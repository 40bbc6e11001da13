// SPDX-License-Identifier: Apache-2.0

package overlaykeys

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/dirwatch"
)

// resyncTime is how often the file is read though nothing was noticed.
const resyncTime = 30 * time.Second

// maxFile bounds what is read of the file.
const maxFile = 64 << 10

// follower keeps the row that of the file.
type follower struct {
	db          *statedb.DB
	log         *slog.Logger
	config      Config
	table       statedb.RWTable[*tables.OverlayKeys]
	watcher     dirwatch.Watcher
	initialized func(statedb.WriteTxn)
}

func (f *follower) run(ctx context.Context, health cell.Health) error {
	defer f.watcher.Close()
	if f.config.OverlayKeys == "" {
		row, err := f.write(nil, nil)
		if err != nil {
			return err
		}
		report(health, row, nil)
		<-ctx.Done()
		return nil
	}
	for {
		next := resyncTime
		// What happens to the file after this is noticed.
		if f.watcher.Watch(filepath.Dir(f.config.OverlayKeys)) != nil {
			next = dirwatch.PollTime
		}
		keys, broken := readKeys(f.config.OverlayKeys)
		if broken != nil {
			next = dirwatch.PollTime
		}
		row, err := f.write(keys, broken)
		if err != nil {
			return err
		}
		report(health, row, broken)
		timer := time.NewTimer(next)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-f.watcher.Events():
		case <-f.watcher.Errors(): // such as too many events: something was missed
		case <-timer.C:
		}
		timer.Stop()
	}
}

// report says in health what is open. That there is no key where one was asked for is a fault.
func report(health cell.Health, row *tables.OverlayKeys, broken error) {
	open := row.Open()
	switch {
	case broken != nil:
		health.Degraded("Cannot read the keys of the overlay, they stay as they were: "+state(row), broken)
	case open != "":
		health.OK("Open: " + open)
	default:
		health.OK("Keys " + numbers(row))
	}
}

func numbers(row *tables.OverlayKeys) string { return strings.Join(row.Numbers(), ", ") }

func state(row *tables.OverlayKeys) string {
	if open := row.Open(); open != "" {
		return open
	}
	return numbers(row)
}

// write makes the row that of keys, or if they could not be read, notes that.
func (f *follower) write(keys []bpf.OverlayKey, broken error) (*tables.OverlayKeys, error) {
	wtxn := f.db.WriteTxn(f.table)
	defer wtxn.Abort()
	old, _, found := f.table.Get(wtxn, tables.OverlayKeysByIndex(0))
	row := &tables.OverlayKeys{
		Keys: keys, AcceptUnsigned: f.config.OverlayAcceptUnsigned, Reconciled: tables.Pending(),
	}
	if broken != nil {
		row.Reason = broken.Error()
		if found {
			row.Keys = old.Keys
		}
	}
	if found && old.Equal(row) {
		return old, nil
	}
	if found {
		f.log.Info("The keys of the overlay have changed", "keys", numbers(row), "reason", row.Reason)
	}
	if _, _, err := f.table.Insert(wtxn, row); err != nil {
		return nil, fmt.Errorf("write overlay keys: %w", err)
	}
	f.initialized(wtxn)
	wtxn.Commit()
	return row, nil
}

// readKeys reads the file. Its errors have nothing of what is in it.
func readKeys(path string) ([]bpf.OverlayKey, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, maxFile))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	keys, err := parseKeys(string(data))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return keys, nil
}
