// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"sync"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/sluice-net/sluice/tables"
)

// status says how it goes with one kind of object: in its row of table
// object-sources, in health, and in the log when that changes.
type status struct {
	db     *statedb.DB
	table  statedb.RWTable[*tables.ObjectSource]
	log    *slog.Logger
	needed string // why it is a problem if the kind is absent, empty if it is none

	mu     sync.Mutex
	health cell.Health
	row    tables.ObjectSource
	listed bool

	held    string // why rows stay whose objects are deleted, empty if there are none
	warning string // why the deletion of a CRD cannot be told from that of its objects
}

func (s *status) start(health cell.Health) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.health = health
	s.set(tables.SourceSyncing, s.row.Objects, "")
}

// replaced says that the rows are those of a listing, of which some objects
// may be unusable.
func (s *status) replaced(rows int, unusable error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listed = true
	s.set(s.synced(rows, errorText(unusable)))
}

// changed says that events changed the number of rows. The last object that was
// unusable stays named until the next listing.
func (s *status) changed(rows int, unusable error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := s.row.Error
	if unusable != nil {
		text = errorText(unusable)
	}
	switch s.row.State {
	case tables.SourceKept:
		s.set(s.synced(rows, errorText(unusable)))
	case tables.SourceSynced:
		s.set(s.synced(rows, text))
	default:
		s.set(s.row.State, rows, text)
	}
}

// kept says that rows stay whose objects are deleted, and what the CRD does that explains it.
func (s *status) kept(crd string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held = "CRD " + s.row.Source + " " + crd + ": its objects stay as they were, until it is there and they can be " +
		"listed, or the agent restarts"
	s.set(s.synced(s.row.Objects, ""))
}

// released says that no row stays whose object is deleted.
func (s *status) released() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held = ""
}

// unguarded says that the CRD cannot be read, and guarded that it can.
func (s *status) unguarded(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held = ""
	s.warning = "read the CRD of " + s.row.Source + ", whose deletion deletes its objects here too: " + errorText(err)
}

func (s *status) guarded() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.warning != "" && s.row.Error == s.warning {
		s.set(s.row.State, s.row.Objects, "")
	}
	s.warning = ""
}

// absent says that the API server does not serve the kind, and what is wrong with that beside
// that it may be needed.
func (s *status) absent(why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listed, s.held = false, ""
	s.set(tables.SourceAbsent, 0, cmp.Or(why, s.needed))
}

// broken says that the kind cannot be listed or watched.
func (s *status) broken(verb string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.set(tables.SourceBroken, s.row.Objects, verb+" "+s.row.Source+": "+errorText(err))
}

// resumed says that a watch goes on from where it broke.
func (s *status) resumed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listed && s.row.State == tables.SourceBroken {
		s.set(s.synced(s.row.Objects, ""))
	}
}

// synced returns what to set if a kind is followed.
func (s *status) synced(rows int, problem string) (state string, objects int, text string) {
	if s.held != "" {
		return tables.SourceKept, rows, s.held
	}
	return tables.SourceSynced, rows, cmp.Or(problem, s.warning)
}

func (s *status) set(state string, objects int, problem string) {
	before := s.row
	s.row.State, s.row.Objects, s.row.Error = state, objects, problem
	if s.row == before {
		return
	}
	s.report(before)
	row := s.row
	wtxn := s.db.WriteTxn(s.table)
	defer wtxn.Abort()
	if _, _, err := s.table.Insert(wtxn, &row); err != nil {
		s.log.Error("Cannot write object-sources", "error", err)
	}
	wtxn.Commit()
}

func (s *status) report(before tables.ObjectSource) {
	switch {
	case s.row.State == tables.SourceAbsent && s.row.Error != "":
		s.health.Degraded(s.row.Source+" is not served", errors.New(s.row.Error))
	case s.row.State == tables.SourceBroken:
		s.health.Degraded("cannot follow "+s.row.Source, errors.New(s.row.Error))
	case s.row.State == tables.SourceKept:
		s.health.Degraded(s.row.Source+" stay as they were", errors.New(s.row.Error))
	case s.row.Error != "" && s.row.Error == s.warning:
		s.health.Degraded("cannot read the CRD of "+s.row.Source, errors.New(s.row.Error))
	case s.row.Error != "":
		s.health.Degraded("unusable object", errors.New(s.row.Error))
	default:
		s.health.OK(fmt.Sprintf("%s, %d rows", s.row.State, s.row.Objects))
	}
	if s.row.State == before.State && s.row.Error == before.Error {
		return
	}
	log := s.log.With("resource", s.row.Source)
	switch {
	case s.row.State == tables.SourceAbsent && s.row.Error != "":
		log.Warn("Resource is not served: taken as empty, and looked for", "reason", s.row.Error)
	case s.row.State == tables.SourceAbsent:
		log.Warn("Resource is not served, as its CRD is missing: taken as empty, and looked for")
	case s.row.State == tables.SourceKept:
		log.Warn("Objects stay as they were", "reason", s.row.Error)
	case s.row.Error != "" && s.row.Error == s.warning:
		log.Warn("Cannot read a CRD", "error", s.row.Error)
	case s.row.Error != "":
		log.Warn("Cannot follow resource", "error", s.row.Error)
	case s.row.State == tables.SourceSynced:
		log.Info("Resource is synced", "objects", s.row.Objects)
	}
}

// maxErrorText bounds the text of an error, in bytes: an API server may say anything.
const maxErrorText = 1024

// errorText returns the text of an error of an API server, without what differs
// from one try to the next, such as the URL.
func errorText(err error) string {
	var request *url.Error
	var text string
	switch {
	case err == nil:
	case apierrors.IsForbidden(err):
		text = "missing right: " + err.Error()
	case errors.As(err, &request):
		text = request.Err.Error()
	default:
		text = err.Error()
	}
	if len(text) > maxErrorText {
		text = strings.ToValidUTF8(text[:maxErrorText-3], "") + "..."
	}
	return text
}
