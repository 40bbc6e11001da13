// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/cilium/hive/cell"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// Links says when attachments has the links that existed when the agent started.
type Links struct{ known chan struct{} }

func newLinks() Links { return Links{make(chan struct{})} }

// Known is closed when that is so, and the maps are open.
func (l Links) Known() <-chan struct{} { return l.known }

// registerLinks has the links that there are when the agent starts, and that work, be rows of
// attachments: until this agent's maps are active the programs of others judge by those of
// others, and what is written about their devices need not wait for this agent's programs.
func registerLinks(p params, links Links, lifecycle cell.Lifecycle) {
	lifecycle.Append(cell.Hook{OnStart: func(cell.HookContext) error {
		defer close(links.known)
		rows, err := p.links().found()
		if err != nil {
			return err
		}
		if memory := p.memory(); memory != nil {
			rows = foundInMemory(memory)
		}
		wtxn := p.DB.WriteTxn(p.Attachments)
		defer wtxn.Abort()
		for _, row := range rows {
			if _, _, err := p.Attachments.Insert(wtxn, row); err != nil {
				return fmt.Errorf("write %s: %w", p.Attachments.Name(), err)
			}
		}
		wtxn.Commit()
		return nil
	}})
}

// found returns an attachment for each program of which links work.
func (l links) found() (rows []*tables.Attachment, err error) {
	if l.dir == "" {
		return nil, nil
	}
	pins, err := l.names()
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, pin := range pins {
		row, err := l.foundAt(pin)
		errs = append(errs, err)
		if row != nil {
			rows = append(rows, row)
		}
	}
	return rows, errors.Join(errs...)
}

// foundAt returns the attachment of a pinned link, nil if that does not work, or is of a
// program that this version does not know.
func (l links) foundAt(pin string) (*tables.Attachment, error) {
	row := attachmentOf(pin)
	if row == nil {
		return nil, nil
	}
	var link *bpf.PinnedLink
	var err error
	if row.Program == bpf.ProgramBackstop {
		link, err = l.load(pin)
	} else {
		link, err = l.loadTCX(row.IfIndex, row.Program)
	}
	if link == nil || err != nil {
		return nil, err
	}
	defer link.Close()
	row.LinkID = uint32(link.Info.ID)
	return row, nil
}

// foundInMemory returns the attachments that a former agent on the same maps in memory had.
func foundInMemory(memory *bpf.Memory) (rows []*tables.Attachment) {
	for _, name := range memory.Links() {
		if row := attachmentOf(name); row != nil {
			rows = append(rows, row)
		}
	}
	return rows
}

// attachmentOf returns the attachment with a name, nil if there is no such program.
func attachmentOf(pin string) *tables.Attachment {
	row := &tables.Attachment{
		Program: bpf.ProgramBackstop, Origin: tables.FormerAttachment, Reconciled: tables.Done(),
	}
	if isBackstop(pin) {
		return row
	}
	name, number, _ := cutLast(pin, "_")
	index, err := strconv.Atoi(number)
	if err != nil || row.Program.UnmarshalText([]byte(name)) != nil {
		return nil
	}
	row.IfIndex = index
	return row
}

func cutLast(s, separator string) (before, after string, found bool) {
	if i := strings.LastIndex(s, separator); i >= 0 {
		return s[:i], s[i+len(separator):], true
	}
	return s, "", false
}
