// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"strconv"

	"k8s.io/apimachinery/pkg/labels"
)

// Identity is a CiliumIdentity: the labels that Cilium gave a number to.
type Identity struct {
	ID             uint32       `json:"id"`
	Namespace      string       `json:"namespace"`
	ServiceAccount string       `json:"serviceAccount,omitempty"`
	Labels         labels.Set   `json:"labels,omitempty"` // of the pod itself, without source prefixes
	Errors         []FieldError `json:"errors,omitempty"`
}

// TableHeader implements [statedb.TableWritable].
func (*Identity) TableHeader() []string {
	return []string{"ID", "Namespace", "ServiceAccount", "Labels", "Errors"}
}

// TableRow implements [statedb.TableWritable].
func (i *Identity) TableRow() []string {
	return []string{
		strconv.FormatUint(uint64(i.ID), 10), orDash(i.Namespace), orDash(i.ServiceAccount), orDash(i.Labels.String()), errorColumn(i.Errors),
	}
}

var (
	identityIDIndex = UniqueIndex("id", Uint32Keys, func(i *Identity) uint32 { return i.ID })

	// IdentityByID queries an identity by its number.
	IdentityByID = identityIDIndex.Query
)

// NewIdentityTable creates the table of identities.
var NewIdentityTable = Declare("identities", identityIDIndex)
