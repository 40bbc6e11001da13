// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	k8sserializer "k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	"github.com/sluice-net/sluice/sources/objects"
	"github.com/sluice-net/sluice/tables/pause"
)

// definition is the CustomResourceDefinition of a kind. The zero value says that there is none.
type definition struct {
	uid      types.UID
	deleting bool // the API server deletes the objects of the kind, then the definition
}

func (d definition) isGone() bool { return d.uid == "" || d.deleting }

// explain says what is wrong with a definition because of which objects stay, or what
// else is if it is not gone.
func (d definition) explain(other string) string {
	switch {
	case d.deleting:
		return "is being deleted"
	case d.uid == "":
		return "is deleted"
	}
	return other
}

// definitions is the resource of definitions, each named as [objects.Kind.Source] says.
var definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1",
	Resource: "customresourcedefinitions"}

// metadataCodecs decode the metadata of objects, and errors.
var metadataCodecs = func() runtime.NegotiatedSerializer {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	utilruntime.Must(metav1.AddMetaToScheme(scheme))
	return k8sserializer.NewCodecFactory(scheme).WithoutConversion()
}()

// acceptMetadata asks for the metadata of an object alone, as a definition is large.
const acceptMetadata = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"

// definition implements [api].
func (s *server) definition(ctx context.Context, k *objects.Kind) (definition, error) {
	var object metav1.PartialObjectMetadata
	err := s.definitions.Get().MaxRetries(0).
		Resource(definitions.Resource).Name(k.Source()).Do(ctx).Into(&object)
	if apierrors.IsNotFound(err) {
		return definition{}, nil
	}
	return definition{uid: object.UID, deleting: object.DeletionTimestamp != nil}, err
}

// review changes the events of a batch that would remove objects because their definition is
// deleted, so that the objects stay. It returns false if the context has ended.
//
// The API server marks a definition before it deletes the first of its objects. So the
// deletion of an object counts if the definition, read after the event has come, is not
// marked, and is the one that the objects were listed under.
func (r *reflector) review(ctx context.Context, batch []event) bool {
	removes := slices.ContainsFunc(batch, func(ev event) bool { return ev.op != opPut })
	if !r.kind.Guarded || !removes {
		return true
	}
	d, readable := r.readDefinition(ctx)
	if !readable {
		return ctx.Err() == nil // without the right to read it all deletions count
	}
	for i := range batch {
		switch ev := &batch[i]; ev.op {
		case opReplace:
			if d.isGone() {
				ev.op = opMerge
				r.status.kept(d.explain(""))
				r.relist() // until there is a definition again
			} else {
				r.listedUnder = d.uid
				r.status.released()
			}
		case opDelete:
			if d.isGone() || d.uid != r.listedUnder && r.listedUnder != "" {
				ev.op = opKeep
				r.status.kept(d.explain("was deleted and created again"))
				r.relist() // the watch is of a definition that is no more
			}
		case opAbsent:
			if r.store.Rows() > 0 {
				ev.op = opKeep
				r.status.kept(d.explain("does not serve " + r.kind.APIVersion()))
			} else if !d.isGone() {
				ev.why = "CRD " + r.kind.Source() + " does not serve " + r.kind.APIVersion() +
					": its objects are not read"
			}
		}
	}
	return true
}

// readDefinition returns the definition of the kind as it is now. It retries until it has
// that, or the context has ended. It is not readable if the right is missing.
func (r *reflector) readDefinition(ctx context.Context) (d definition, readable bool) {
	retry, failed := newBackoff(r.api.timing()), false
	for {
		d, err := r.api.definition(ctx, r.kind)
		switch {
		case ctx.Err() != nil:
			return d, false
		case apierrors.IsForbidden(err):
			r.status.unguarded(err)
			return d, false
		case err == nil:
			r.status.guarded()
			if failed {
				r.status.resumed()
			}
			return d, true
		}
		failed = true
		r.status.broken("read the CRD of", err)
		if !pause.For(ctx, retry.Step()) {
			return d, false
		}
	}
}
