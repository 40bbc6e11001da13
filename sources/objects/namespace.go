// SPDX-License-Identifier: Apache-2.0

package objects

import "github.com/sluice-net/sluice/tables"

type namespace struct{ object }

func namespaces(o *namespace, name tables.Name, errs *fieldErrors) []*tables.Namespace {
	n := &tables.Namespace{
		Name: name.Name, Labels: o.Metadata.Labels,
		EgressIPPool: o.Metadata.Annotations.EgressIPPool, Errors: *errs,
	}
	if n.Labels == nil {
		n.Labels = map[string]string{}
	}
	n.Labels[tables.LabelNamespaceName] = name.Name
	return one(n)
}
