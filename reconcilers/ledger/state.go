// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"bufio"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// StateDir is the directory for what has to outlive the agent; empty: there is none.
type StateDir string

// StateFile is the file in it with the translations that have no end yet. There is one while no
// agent runs, from one that has stopped to the next.
const StateFile = "ledger-open"

// openState is one of its entries.
type openState struct {
	Record               bpf.LedgerRecord // of the begin
	Namespace, Pod, Node string
}

// save writes a set for the next agent.
func (o *openSet) save(dir StateDir) error {
	if dir == "" {
		return nil
	}
	path := filepath.Join(string(dir), StateFile)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("keep translations without end: %w", err)
	}
	to := bufio.NewWriter(f)
	encoder := gob.NewEncoder(to)
	for _, id := range o.order { // before what has their tuples now
		if a, ok := o.absent[id]; ok && err == nil {
			err = encoder.Encode(stateOf(id.tuple, a.translation))
		}
	}
	for key, t := range o.open {
		if err == nil {
			err = encoder.Encode(stateOf(key, t))
		}
	}
	if err = errors.Join(err, to.Flush(), f.Close()); err != nil {
		return fmt.Errorf("keep translations without end: %w", err)
	}
	return nil
}

func stateOf(key tuple, t translation) openState {
	by := t.owner.Value()
	return openState{
		Record: t.record(key), Namespace: by.Namespace, Pod: by.Name.Name, Node: by.node,
	}
}

// restore takes in what the agent before has saved, if that has stopped, and removes it. It
// reports whether there was something, though that may be empty.
func (o *openSet) restore(dir StateDir, stopped bool) (restored bool, err error) {
	if dir == "" {
		return false, nil
	}
	path := filepath.Join(string(dir), StateFile)
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	} else if err != nil {
		return false, fmt.Errorf("restore translations without end: %w", err)
	}
	defer f.Close()
	from := gob.NewDecoder(bufio.NewReader(f))
	for stopped {
		var s openState
		if err = from.Decode(&s); err != nil {
			break
		}
		o.begin(&s.Record, owner{tables.Name{Namespace: s.Namespace, Name: s.Pod}, s.Node})
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	if err = errors.Join(err, os.Remove(path)); err != nil {
		clear(o.open)
		clear(o.absent)
		o.order = nil
		return false, fmt.Errorf("restore translations without end: %w", err)
	}
	return stopped, nil
}
