// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"strings"

	"github.com/cilium/statedb/index"
)

// Name is the namespaced name of a Kubernetes object.
type Name struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// String returns the "namespace/name" form, which is also the index key. A
// slash cannot occur in either part, so no two names share a key.
func (n Name) String() string { return n.Namespace + "/" + n.Name }

// Key is the index key of the name.
func (n Name) Key() index.Key { return index.String(n.String()) }

// FieldError says which field of an object cannot be used, and why.
type FieldError struct {
	Field  string `json:"field"` // path, such as spec.destinationCIDRs[1]
	Reason string `json:"reason"`
}

func (e FieldError) Error() string { return e.Field + ": " + e.Reason }

// errorColumn renders what is wrong with an object, "-" if nothing is.
func errorColumn(errs []FieldError) string {
	texts := make([]string, len(errs))
	for i, e := range errs {
		texts[i] = e.Error()
	}
	return listColumn(texts, "; ")
}

// listColumn renders a list, "-" if it is empty.
func listColumn[T ~[]string](items T, separator string) string {
	if len(items) == 0 {
		return "-"
	}
	return strings.Join(items, separator)
}

// stringsOf renders each item of a list.
func stringsOf[T interface{ String() string }](items []T) []string {
	out := make([]string, len(items))
	for i, item := range items {
		out[i] = item.String()
	}
	return out
}

// orDash renders an empty text as "-".
func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
