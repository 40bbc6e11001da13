// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/sluice-net/sluice/sources/objects"
)

// item carries a decoded object through [cache.Reflector], with the metadata
// that it looks at.
type item struct {
	metav1.TypeMeta
	metav1.ObjectMeta

	object *objects.Object

	// partial says that more was delivered together with this, to be committed
	// together with it.
	partial bool

	// committed is called when this is in its table; nil but with [FakeAPI].
	committed func()
}

func newItem(o *objects.Object) *item {
	i := &item{object: o}
	i.Name, i.Namespace, i.ResourceVersion = o.Name.Name, o.Name.Namespace, o.ResourceVersion
	if o.InitialEventsEnd {
		i.Annotations = map[string]string{metav1.InitialEventsAnnotationKey: "true"}
	}
	return i
}

func decodeItem(k *objects.Kind, data []byte) (*item, error) {
	o, err := k.Decode(data)
	if err != nil {
		return nil, fmt.Errorf("decode %s: %w", k.Kind, err)
	}
	return newItem(o), nil
}

// DeepCopyObject implements [runtime.Object]. What is decoded is not changed
// any more, so it is shared.
func (i *item) DeepCopyObject() runtime.Object {
	c := *i
	return &c
}

// itemList is a listing, or a page of one.
type itemList struct {
	metav1.TypeMeta
	metav1.ListMeta

	Items []*item
}

func decodeList(k *objects.Kind, data []byte) (*itemList, error) {
	l, err := k.DecodeList(data)
	if err != nil {
		return nil, fmt.Errorf("decode list of %s: %w", k.Resource, err)
	}
	// API servers always say it. Without it the answer may be of anything, and be of no objects.
	if l.ResourceVersion == "" {
		return nil, fmt.Errorf("list of %s has no resourceVersion", k.Resource)
	}
	list := &itemList{Items: make([]*item, len(l.Objects))}
	list.ResourceVersion, list.Continue = l.ResourceVersion, l.Continue
	for i, o := range l.Objects {
		list.Items[i] = newItem(o)
	}
	return list, nil
}

// DeepCopyObject implements [runtime.Object].
func (l *itemList) DeepCopyObject() runtime.Object {
	c := *l
	return &c
}
