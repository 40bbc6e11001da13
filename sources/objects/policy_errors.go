// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"iter"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-net/sluice/tables"
)

// policyReader reads the rules of one policy. The errors that it has collected
// are indexed, as it asks for each part of a policy whether it has some.
type policyReader struct {
	namespace   string // empty if the policy is clusterwide
	errs        *fieldErrors
	late        fieldErrors // mistakes that change nothing but what they are in
	unsupported fieldErrors

	indexed int              // so many of errs are in the index
	at      map[string]bool  // fields that have an error
	under   map[string][]int // errors in a field, and of it
}

func newPolicyReader(namespace string, errs *fieldErrors) *policyReader {
	return &policyReader{namespace: namespace, errs: errs}
}

func (r *policyReader) index() {
	if r.at == nil && len(*r.errs) > 0 {
		r.at, r.under = map[string]bool{}, map[string][]int{}
	}
	for ; r.indexed < len(*r.errs); r.indexed++ {
		field := (*r.errs)[r.indexed].Field
		r.at[field] = true
		for part := range partsOf(field) {
			r.under[part] = append(r.under[part], r.indexed)
		}
	}
}

// partsOf returns the paths that a path goes on from, and itself.
func partsOf(path string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for i := range path {
			if (path[i] == '.' || path[i] == '[') && !yield(path[:i]) {
				return
			}
		}
		yield(path)
	}
}

// add reports a field, as [fieldErrors.add] does.
func (r *policyReader) add(field, reason string) {
	if !r.above(field) {
		*r.errs = append(*r.errs, tables.FieldError{Field: field, Reason: reason})
	}
}

// missing reports what a field should have, unless it has an error from which
// that may follow.
func (r *policyReader) missing(field, reason string) {
	if !r.bad(field) {
		r.add(field, reason)
	}
}

// above reports whether a field, or what it is in, has an error.
func (r *policyReader) above(field string) bool {
	r.index()
	if len(r.at) == 0 {
		return false
	}
	for part := range partsOf(field) {
		if r.at[part] {
			return true
		}
	}
	return false
}

// bad reports whether a field, something in it, or what it is in has an error.
func (r *policyReader) bad(field string) bool {
	return r.above(field) || len(r.under[field]) > 0
}

// badBeside reports whether a field has an error that is not in certain fields of
// it, but in others, or of the field as such.
func (r *policyReader) badBeside(field string, partial func(name string) bool) bool {
	if r.above(field) {
		return true
	}
	for _, i := range r.under[field] {
		name := (*r.errs)[i].Field[len(field)+1:]
		for part := range partsOf(name) {
			name = part
			break
		}
		if !partial(name) {
			return true
		}
	}
	return false
}

// errors returns all mistakes.
func (r *policyReader) errors() []tables.FieldError {
	for _, e := range r.late {
		r.add(e.Field, e.Reason)
	}
	return *r.errs
}

// addLate reports a mistake that has no effect on what is made of the field.
func (r *policyReader) addLate(field, reason string) {
	r.late = append(r.late, tables.FieldError{Field: field, Reason: reason})
}

// selector returns the canonical text of a selector.
func (r *policyReader) selector(field string, s *metav1.LabelSelector) string {
	var errs fieldErrors
	text := selectorText(field, s, &errs)
	r.addAll(errs)
	return text
}

// podSelector returns the canonical text of a selector of pods.
func (r *policyReader) podSelector(field string, s *metav1.LabelSelector) string {
	text := r.selector(field, s)
	var errs fieldErrors
	refuseChurnLabels(field, text, &errs)
	r.addAll(errs)
	return text
}

func (r *policyReader) addAll(errs fieldErrors) {
	for _, e := range errs {
		r.add(e.Field, e.Reason)
	}
}

func indexed(field string, i int) string { return field + "[" + strconv.Itoa(i) + "]" }
