// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-net/sluice/tables"
)

type ciliumIdentity struct {
	object
	SecurityLabels map[string]string `json:"security-labels"`
}

// checkName returns an error unless the name is the number of an identity.
func (o *ciliumIdentity) checkName() error {
	if identityOf(tables.Name{Name: o.Metadata.Name}) == 0 {
		return fmt.Errorf("metadata.name: %q is no identity", o.Metadata.Name)
	}
	return nil
}

// identityOf returns the number that is the name of a CiliumIdentity, 0 if it is
// none.
func identityOf(name tables.Name) uint32 {
	id, err := strconv.ParseUint(name.Name, 10, 32)
	if err != nil || strconv.FormatUint(id, 10) != name.Name {
		return 0
	}
	return uint32(id)
}

// identities returns the identity with the labels of its pods. Those that Cilium
// adds are taken out: the namespace and the service account have fields of their
// own, and the labels of the namespace are joined later.
func identities(o *ciliumIdentity, name tables.Name, errs *fieldErrors) []*tables.Identity {
	out := &tables.Identity{ID: identityOf(name)}
	for _, key := range slices.Sorted(maps.Keys(o.SecurityLabels)) {
		value := o.SecurityLabels[key]
		source, bare, found := strings.Cut(key, ":")
		switch {
		case !found || source != "k8s":
			errs.add("security-labels["+strconv.Quote(key)+"]", "is no label of a pod")
		case bare == labelNamespace:
			out.Namespace = internString(value)
		case bare == labelServiceAccount:
			out.ServiceAccount = value
		case isInjected(bare):
		default:
			if out.Labels == nil {
				out.Labels = labels.Set{}
			}
			out.Labels[bare] = value
		}
	}
	out.Labels = podLabels(out.Labels)
	if out.Namespace == "" {
		errs.add("security-labels", "no k8s:"+labelNamespace)
	}
	out.Errors = *errs
	return one(out)
}
