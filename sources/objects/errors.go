// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"strings"

	"github.com/sluice-net/sluice/tables"
)

// fieldErrors collects what is wrong with an object.
type fieldErrors []tables.FieldError

// add reports a field, unless it is part of one that is reported already: what
// follows from a mistake is not a second one.
func (e *fieldErrors) add(field, reason string) {
	for _, f := range *e {
		if within(field, f.Field) {
			return
		}
	}
	*e = append(*e, tables.FieldError{Field: field, Reason: reason})
}

// maxNoted bounds the mistakes of an object that change nothing but what they are in.
const maxNoted = 100

// note is add for such a mistake: its value is left out, whether or not it is reported.
func (e *fieldErrors) note(field, reason string) {
	if len(*e) < maxNoted {
		e.add(field, reason)
	}
}

// of returns what is wrong with a field, with what is in it, and with what it is in.
func (e fieldErrors) of(field string) fieldErrors {
	var errs fieldErrors
	for _, f := range e {
		if within(f.Field, field) || within(field, f.Field) {
			errs = append(errs, f)
		}
	}
	return errs
}

func (e fieldErrors) String() string {
	texts := make([]string, len(e))
	for i, f := range e {
		texts[i] = f.Error()
	}
	return strings.Join(texts, "; ")
}

// within reports whether a path is the same as another or goes on from there.
func within(path, other string) bool {
	rest, ok := strings.CutPrefix(path, other)
	return ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
}

// reasons are the reasons alone.
func (e fieldErrors) reasons() string {
	texts := make([]string, len(e))
	for i, f := range e {
		texts[i] = f.Reason
	}
	return strings.Join(texts, "; ")
}
