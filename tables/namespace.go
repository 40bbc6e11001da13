// SPDX-License-Identifier: Apache-2.0

package tables

import "k8s.io/apimachinery/pkg/labels"

// Namespace is a namespace with its labels.
type Namespace struct {
	Name         string       `json:"name"`
	Labels       labels.Set   `json:"labels,omitempty"`
	EgressIPPool string       `json:"egressIPPool,omitempty"` // by [PoolAnnotation]
	Errors       []FieldError `json:"errors,omitempty"`
}

// LabelNamespaceName is what the API server sets on each namespace to its name, so that selectors
// can name it.
const LabelNamespaceName = "kubernetes.io/metadata.name"

// TableHeader implements [statedb.TableWritable].
func (*Namespace) TableHeader() []string { return []string{"Name", "Labels", "Errors"} }

// TableRow implements [statedb.TableWritable].
func (n *Namespace) TableRow() []string {
	return []string{n.Name, orDash(n.Labels.String()), errorColumn(n.Errors)}
}

var (
	namespaceNameIndex = UniqueIndex("name", StringKeys,
		func(n *Namespace) string { return n.Name })

	// NamespaceByName queries a namespace by its name.
	NamespaceByName = namespaceNameIndex.Query
)

// NewNamespaceTable creates the table of namespaces.
var NewNamespaceTable = Declare("namespaces", namespaceNameIndex)
