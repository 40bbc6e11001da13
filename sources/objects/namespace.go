// SPDX-License-Identifier: Apache-2.0

package objects

import "github.com/sluice-net/sluice/tables"

type namespace struct{ object }

// labelNamespaceName is what the API server sets on each namespace, so that
// selectors can name it.
const labelNamespaceName = "kubernetes.io/metadata.name"

func namespaces(o *namespace, name tables.Name, errs *fieldErrors) []*tables.Namespace {
	n := &tables.Namespace{Name: name.Name, Labels: o.Metadata.Labels, Errors: *errs}
	if n.Labels == nil {
		n.Labels = map[string]string{}
	}
	n.Labels[labelNamespaceName] = name.Name
	return one(n)
}
