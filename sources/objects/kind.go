// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/cilium/statedb"
	kjson "sigs.k8s.io/json"

	"github.com/sluice-net/sluice/tables"
)

// Kind is a kind of object that the agent reads.
type Kind struct {
	Group      string
	Version    string
	Kind       string
	Resource   string // plural, lower case
	Namespaced bool
	Needed     string // why the agent cannot work if this is not served, empty if it can

	// Protobuf is set for the kinds of API servers themselves: they have these also in protobuf.
	Protobuf bool

	// Guarded is set for kinds by a CRD that people write objects of. Deleting the CRD deletes
	// the objects one by one; that is not what their deletion means.
	Guarded bool

	// Only is the one object of the kind that is read; without a name all are.
	Only tables.Name

	decoder decoder
	open    func(t *Tables) *Store
}

// decoder decodes objects of a kind.
type decoder struct {
	one  func(k *Kind, data []byte) (*Object, error)
	list func(k *Kind, data []byte) (*List, error)
}

// List is a listing of objects, or a page of one.
type List struct {
	ResourceVersion string
	Continue        string // where the next page begins, empty on the last
	Objects         []*Object
}

// Object is what an object of some kind stands for.
type Object struct {
	Kind            string      // as the object says; empty in a list of the API
	Name            tables.Name // without namespace if the kind has none
	ResourceVersion string

	// InitialEventsEnd marks the bookmark that ends the initial events of a
	// watch. It is no object.
	InitialEventsEnd bool

	// Err says why the object has no rows: no usable name tells it from others.
	Err error

	rows []any // of the table of the kind
}

// Decode decodes the JSON or the protobuf of one object. What is wrong in the object is in its
// rows, or in its Err. The error is for data that is neither.
func (k *Kind) Decode(data []byte) (*Object, error) { return k.decoder.one(k, data) }

// DecodeList decodes the JSON or the protobuf of a listing. The error is for data that is none,
// or that of another kind: what has no items of this kind does not say that there are none.
func (k *Kind) DecodeList(data []byte) (*List, error) { return k.decoder.list(k, data) }

// Store returns the writer of the rows of this kind.
func (k *Kind) Store(t *Tables) *Store { return k.open(t) }

// Source is how the kind is called in table object-sources: resource.group.
func (k *Kind) Source() string {
	if k.Group == "" {
		return k.Resource
	}
	return k.Resource + "." + k.Group
}

// BuiltIn reports whether every API server serves the kind: it is by no CRD.
func (k *Kind) BuiltIn() bool { return k.Protobuf }

// APIVersion is the value of the field of that name.
func (k *Kind) APIVersion() string {
	if k.Group == "" {
		return k.Version
	}
	return k.Group + "/" + k.Version
}

// decoderFor returns the decoder of a kind that is decoded into an O, and has
// rows of some type. If the O has a method strict, unknown fields are mistakes.
func decoderFor[O any, P interface {
	*O
	base() *object
}, Row any](rows func(o P, name tables.Name, errs *fieldErrors) []Row) decoder {
	_, strict := any(P(nil)).(interface{ strict() })
	object := func(k *Kind, o P, errs fieldErrors) *Object {
		base := o.base()
		out := &Object{
			Kind:             base.Kind,
			ResourceVersion:  base.Metadata.ResourceVersion,
			InitialEventsEnd: base.Metadata.Annotations.InitialEventsEnd == "true",
		}
		if out.Name, out.Err = base.name(k.Namespaced); out.Err != nil {
			return out
		}
		if c, ok := any(o).(interface{ checkName() error }); ok {
			if out.Err = c.checkName(); out.Err != nil {
				return out
			}
		}
		for _, row := range rows(o, out.Name, &errs) {
			out.rows = append(out.rows, row)
		}
		return out
	}
	message := func(k *Kind, raw []byte) (*Object, error) {
		var (
			o    = P(new(O))
			errs fieldErrors
		)
		if err := unmarshalProtobuf(raw, o, strict, &errs); err != nil {
			return nil, err
		}
		return object(k, o, errs), nil
	}
	one := func(k *Kind, data []byte) (*Object, error) {
		if IsProtobuf(data) {
			return oneProtobuf(k, data, message)
		}
		var (
			o    = P(new(O))
			errs fieldErrors
		)
		if err := unmarshal(data, o, strict, &errs); err != nil {
			return nil, err
		}
		return object(k, o, errs), nil
	}
	list := func(k *Kind, data []byte) (*List, error) {
		if IsProtobuf(data) {
			return listProtobuf(k, data, message)
		}
		// All in one go, which is the fastest by far, but does not say which object
		// has an unknown field.
		var typed answer[O]
		if !strict && kjson.UnmarshalCaseSensitivePreserveInts(data, &typed) == nil {
			if err := k.checkList(typed.typeMeta); err != nil {
				return nil, err
			}
			out := typed.list()
			for i := range typed.Items {
				out.Objects[i] = object(k, &typed.Items[i], nil)
			}
			return out, nil
		}
		// One by one, as some may have mistakes.
		var raw answer[json.RawMessage]
		if err := kjson.UnmarshalCaseSensitivePreserveInts(data, &raw); err != nil {
			return nil, fmt.Errorf("parse list: %w", err)
		}
		if err := k.checkList(raw.typeMeta); err != nil {
			return nil, err
		}
		out := raw.list()
		for i, item := range raw.Items {
			var err error
			if out.Objects[i], err = one(k, item); err != nil {
				return nil, fmt.Errorf("items[%d]: %w", i, err)
			}
		}
		return out, nil
	}
	return decoder{one: one, list: list}
}

// typeMeta says what an answer is. In protobuf the envelope has it.
type typeMeta struct {
	APIVersion string `json:"apiVersion" protobuf:"bytes,1"`
	Kind       string `json:"kind" protobuf:"bytes,2"`
	Message    string `json:"message"` // of a Status
}

// checkList returns an error unless an answer is a listing of the kind.
func (k *Kind) checkList(got typeMeta) error {
	want := typeMeta{APIVersion: k.APIVersion(), Kind: k.Kind + "List"}
	switch {
	case got.APIVersion == want.APIVersion && got.Kind == want.Kind:
		return nil
	case got.Kind == "":
		return fmt.Errorf("the answer names no kind, want %s", want)
	case got.Message != "":
		return fmt.Errorf("the answer is a %s, not a %s: %s", got, want, got.Message)
	}
	return fmt.Errorf("the answer is a %s, not a %s", got, want)
}

func (t typeMeta) String() string { return strings.TrimSpace(t.APIVersion + " " + t.Kind) }

// answer is the JSON of an answer that should be a listing.
type answer[Item any] struct {
	typeMeta
	listOf[Item]
}

// listOf is a listing.
type listOf[Item any] struct {
	Metadata struct {
		ResourceVersion string `json:"resourceVersion" protobuf:"bytes,2"`
		Continue        string `json:"continue" protobuf:"bytes,3"`
	} `json:"metadata" protobuf:"bytes,1"`
	Items []Item `json:"items" protobuf:"bytes,2"`
}

func (l *listOf[Item]) list() *List {
	return &List{
		ResourceVersion: l.Metadata.ResourceVersion,
		Continue:        l.Metadata.Continue,
		Objects:         make([]*Object, len(l.Items)),
	}
}

// one is the rows of an object that is one row.
func one[Row any](row Row) []Row { return []Row{row} }

// storeOf returns the store of a kind whose rows are all of a table. owned queries those of an
// object.
func storeOf[Row any](
	table statedb.RWTable[Row], owned func(tables.Name) statedb.Query[Row],
) *Store {
	return (&writer[Row]{table: table, owned: owned}).store()
}
