// SPDX-License-Identifier: Apache-2.0

package health

import (
	"strings"
	"sync"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"
)

// settle is how long a new message is held back while the level stays OK. Loops
// that put counts into their message would else write a row every round, while what
// follows from the round is under way.
const settle = 200 * time.Millisecond

// jobPrefix begins the names of the scopes that hive opens for one-shot jobs.
const jobPrefix = "job-"

// Reporter writes the table health. It is safe for concurrent use.
type Reporter struct {
	db    *statedb.DB
	table statedb.RWTable[*tables.Health]

	mu     sync.Mutex // taken while holding scope.mu, never the other way round
	scopes map[string]*scope
	held   map[*scope]struct{} // have a message that is not in the table yet
}

// NewReporter returns a reporter without scopes.
func NewReporter(db *statedb.DB, table statedb.RWTable[*tables.Health]) *Reporter {
	return &Reporter{db: db, table: table, scopes: map[string]*scope{}, held: map[*scope]struct{}{}}
}

// Scope returns the scope of an ID, the same as long as it is not closed. It has
// no row before its first report.
func (r *Reporter) Scope(id string) cell.Health { return r.scope(id, id) }

func (r *Reporter) scope(id, name string) *scope {
	r.mu.Lock()
	defer r.mu.Unlock()
	s, ok := r.scopes[id]
	if !ok {
		s = &scope{reporter: r, name: name, row: tables.Health{ID: id}}
		r.scopes[id] = s
	}
	return s
}

// hold has the message of a scope written after the settle time.
func (r *Reporter) hold(s *scope) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.held) == 0 {
		time.AfterFunc(settle, r.flush)
	}
	r.held[s] = struct{}{}
}

func (r *Reporter) flush() {
	r.mu.Lock()
	held := r.held
	r.held = map[*scope]struct{}{}
	r.mu.Unlock()
	for s := range held {
		s.flush()
	}
}

// remove forgets a scope and returns it with the scopes inside it.
func (r *Reporter) remove(s *scope) []*scope {
	r.mu.Lock()
	defer r.mu.Unlock()
	removed := []*scope{s}
	for id, other := range r.scopes {
		if strings.HasPrefix(id, s.row.ID+".") {
			removed = append(removed, other)
			delete(r.scopes, id)
		}
	}
	if r.scopes[s.row.ID] == s {
		delete(r.scopes, s.row.ID)
	}
	return removed
}

// scope implements [cell.Health].
type scope struct {
	reporter *Reporter
	name     string

	mu      sync.Mutex
	row     tables.Health  // the last report; ID never changes
	inTable *tables.Health // what this scope last put into the table
	held    bool           // the row in the table is older than the last report
	closed  bool
}

var _ cell.Health = (*scope)(nil)

// NewScope implements [cell.Health].
func (s *scope) NewScope(name string) cell.Health {
	return s.reporter.scope(s.row.ID+"."+name, name)
}

// OK implements [cell.Health].
func (s *scope) OK(message string) { s.report(cell.StatusOK, message, nil) }

// Degraded implements [cell.Health].
func (s *scope) Degraded(reason string, err error) { s.report(cell.StatusDegraded, reason, err) }

// Stopped implements [cell.Health].
func (s *scope) Stopped(reason string) { s.report(cell.StatusStopped, reason, nil) }

func (s *scope) report(level cell.Level, message string, err error) {
	var errText string
	if err != nil {
		errText = err.Error()
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	sameLevel := s.row.Level == level
	if sameLevel && s.row.Message == message && s.row.Error == errText {
		s.row.Count++
		return
	}
	if !sameLevel {
		s.row.Since, s.row.Count = time.Now(), 0
	}
	s.row.Level, s.row.Message, s.row.Error = level, message, errText
	s.row.Count++
	if sameLevel && level == cell.StatusOK {
		if !s.held {
			s.held = true
			s.reporter.hold(s)
		}
		return
	}
	s.write()
}

// write puts the last report into the table. The caller holds s.mu.
func (s *scope) write() {
	row := s.row
	s.inTable, s.held = &row, false
	wtxn := s.reporter.db.WriteTxn(s.reporter.table)
	defer wtxn.Abort()
	s.reporter.table.Insert(wtxn, &row) // fails only if the transaction is misused
	wtxn.Commit()
}

func (s *scope) flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held && !s.closed {
		s.write()
	}
}

// Close implements [cell.Health]. It removes the scope, and those in it, from
// the table, but not the report of a job that failed: hive closes the scope of
// a job that ends in any way.
func (s *scope) Close() {
	for _, s := range s.reporter.remove(s) {
		s.close()
	}
}

func (s *scope) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.closed = true
	if s.row.Level == "" {
		return
	}
	if s.row.Level == cell.StatusDegraded && strings.HasPrefix(s.name, jobPrefix) {
		s.row.Ended = true
		s.write()
		return
	}
	wtxn := s.reporter.db.WriteTxn(s.reporter.table)
	defer wtxn.Abort()
	// A scope that was opened anew under the same ID may have reported already.
	if row, _, _ := s.reporter.table.Get(wtxn, tables.HealthByID(s.row.ID)); row == s.inTable {
		s.reporter.table.Delete(wtxn, row) // fails only if the transaction is misused
		wtxn.Commit()
	}
}
