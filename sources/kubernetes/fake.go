// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/watch"

	"github.com/sluice-net/sluice/sources/objects"
	"github.com/sluice-net/sluice/tables"
)

// FakeAPI stands for an API server, in scripts and tests. It keeps its objects
// when the agent restarts, if the next hive is given the same one.
//
// A resource has to be marked with [FakeAPI.Sync] before it can be listed: until
// then a reflector waits for it, as for an API server that is slow.
type FakeAPI struct {
	mu        sync.Mutex
	resources []*fakeResource
	created   int // objects so far
}

// fakeResource is the objects of one kind, and all that happened to them.
type fakeResource struct {
	kind    *objects.Kind
	objects map[string]map[string]any // by namespace and name
	log     []fakeEvent               // the resource version is its length
	lost    int                       // events that a watch cannot begin before any more

	watches   int
	committed int // events that are in the table of who watches

	listed, absent, broken bool

	definition int  // number of the CRD, which another one has that is created later
	deleting   bool // the CRD is being deleted

	changed chan struct{} // closed at each change
}

type fakeEvent struct {
	kind    watch.EventType
	data    []byte
	partial bool // the next event is of the same delivery
}

// NewFakeAPI returns an API server that knows all kinds that the agent reads,
// and has no objects.
func NewFakeAPI() *FakeAPI {
	f := &FakeAPI{}
	kinds := append(objects.Kinds(objects.EndpointsKubernetes), objects.Kinds(objects.EndpointsCilium)...)
	for _, k := range append(kinds, objects.NodeReportKind(),
		objects.EgressIPPoolKind(), objects.EgressBGPPeerKind(),
		objects.EgressVotersKind(Config{}.agentNamespace())) {
		if f.find(k.Source()) == nil {
			f.resources = append(f.resources, &fakeResource{
				kind: k, objects: map[string]map[string]any{}, changed: make(chan struct{}),
			})
		}
	}
	return f
}

// Apply creates or replaces the objects of a manifest. They are delivered
// together: one transaction for each kind. What an API server would fill in is
// filled in where it is missing: uid, and a creation time that is later for each
// object.
func (f *FakeAPI) Apply(manifest []byte) error {
	return f.each(manifest, func(r *fakeResource, key string, object map[string]any) (fakeEvent, error) {
		old := r.objects[key]
		f.complete(object, old)
		r.objects[key] = object
		if old != nil {
			return r.event(watch.Modified, object)
		}
		return r.event(watch.Added, object)
	})
}

// Delete deletes the objects of a manifest, together.
func (f *FakeAPI) Delete(manifest []byte) error {
	return f.each(manifest, func(r *fakeResource, key string, _ map[string]any) (fakeEvent, error) {
		old := r.objects[key]
		if old == nil {
			return fakeEvent{}, fmt.Errorf("%s %s: not found", r.kind.Resource, key)
		}
		delete(r.objects, key)
		return r.event(watch.Deleted, old)
	})
}

// Get returns the JSON of an object of a resource, by its namespace and name; nil if
// there is none.
func (f *FakeAPI) Get(resource, namespace, name string) []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.find(resource)
	if r == nil {
		return nil
	}
	object, found := r.objects[tables.Name{Namespace: namespace, Name: name}.String()]
	if !found {
		return nil
	}
	data, err := json.Marshal(object)
	if err != nil {
		panic(err) // it has come as JSON
	}
	return data
}

// each lets do change the objects of a manifest, and delivers the events.
func (f *FakeAPI) each(manifest []byte, do func(r *fakeResource, key string, object map[string]any) (fakeEvent, error)) error {
	docs, err := objects.ReadManifest(manifest)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	events := map[*fakeResource][]fakeEvent{}
	for _, doc := range docs {
		if err = f.one(doc, do, events); err != nil {
			err = fmt.Errorf("%s: %w", doc, err)
			break // what precedes has happened
		}
	}
	for r, batch := range events {
		batch[len(batch)-1].partial = false
		r.log = append(r.log, batch...)
		r.notify()
	}
	return err
}

// one lets do change one object, and adds the event.
func (f *FakeAPI) one(doc *objects.Document, do func(*fakeResource, string, map[string]any) (fakeEvent, error), events map[*fakeResource][]fakeEvent) error {
	r := f.findKind(doc)
	if r == nil {
		return fmt.Errorf("no kind %s of %s", doc.Kind, doc.APIVersion)
	}
	o, err := r.kind.Decode(doc.JSON)
	if err != nil {
		return err
	}
	if o.Err != nil {
		return o.Err
	}
	object := map[string]any{}
	if err := json.Unmarshal(doc.JSON, &object); err != nil {
		return err
	}
	ev, err := do(r, o.Name.String(), object)
	if err != nil {
		return err
	}
	ev.partial = true
	events[r] = append(events[r], ev)
	return nil
}

// complete fills in what an API server does, from the former object if there is
// one.
func (f *FakeAPI) complete(object, old map[string]any) {
	meta, _ := object["metadata"].(map[string]any)
	before, _ := old["metadata"].(map[string]any)
	if old == nil {
		f.created++
		before = map[string]any{
			"uid":               fmt.Sprintf("00000000-0000-0000-0000-%012d", f.created),
			"creationTimestamp": time.Date(2025, 1, 1, 0, 0, f.created, 0, time.UTC).Format(time.RFC3339),
		}
	}
	for _, field := range []string{"uid", "creationTimestamp"} {
		if meta[field] == nil {
			meta[field] = before[field]
		}
	}
}

// event returns an event that is about to happen to an object.
func (r *fakeResource) event(kind watch.EventType, object map[string]any) (fakeEvent, error) {
	data, err := json.Marshal(object)
	return fakeEvent{kind: kind, data: data}, err
}

func (r *fakeResource) notify() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// find returns the resource with a name: resource.group, or the resource alone.
func (f *FakeAPI) find(name string) *fakeResource {
	i := slices.IndexFunc(f.resources, func(r *fakeResource) bool {
		return r.kind.Source() == name || r.kind.Resource == name
	})
	if i < 0 {
		return nil
	}
	return f.resources[i]
}

func (f *FakeAPI) findKind(doc *objects.Document) *fakeResource {
	i := slices.IndexFunc(f.resources, func(r *fakeResource) bool {
		return r.kind.Kind == doc.Kind && r.kind.APIVersion() == doc.APIVersion
	})
	if i < 0 {
		return nil
	}
	return f.resources[i]
}

// update changes resources, all if none is named, and wakes up who waits.
func (f *FakeAPI) update(names []string, change func(*fakeResource)) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	chosen := f.resources
	if len(names) > 0 {
		chosen = nil
	}
	for _, name := range names {
		r := f.find(name)
		if r == nil {
			return fmt.Errorf("unknown resource %q", name)
		}
		chosen = append(chosen, r)
	}
	for _, r := range chosen {
		change(r)
		r.notify()
	}
	return nil
}

// Sync lets resources be listed. One that is named is served from now on, if it
// was absent.
func (f *FakeAPI) Sync(resources ...string) error {
	return f.update(resources, func(r *fakeResource) {
		if r.absent && len(resources) > 0 {
			r.absent, r.deleting = false, false
			r.definition++
		}
		r.listed = true
	})
}

// Slow takes [FakeAPI.Sync] back: resources cannot be listed until it names them
// again. Who watches them already is not concerned.
func (f *FakeAPI) Slow(resources ...string) error {
	return f.update(resources, func(r *fakeResource) { r.listed = false })
}

// Absent deletes the definition of a resource, as an API server does: first its objects, which
// watches tell of, then the definition, which ends them.
func (f *FakeAPI) Absent(resource string) error {
	return f.update([]string{resource}, func(r *fakeResource) {
		r.deleteObjects()
		r.absent, r.lost = true, len(r.log)
	})
}

// terminate is the first half of [FakeAPI.Absent], which takes time if there are finalizers.
func (f *FakeAPI) terminate(resource string) error {
	return f.update([]string{resource}, (*fakeResource).deleteObjects)
}

func (r *fakeResource) deleteObjects() {
	r.deleting = true
	for _, key := range slices.Sorted(maps.Keys(r.objects)) {
		ev, err := r.event(watch.Deleted, r.objects[key])
		if err != nil {
			panic(err) // it has come as JSON
		}
		r.log = append(r.log, ev)
	}
	clear(r.objects)
}

// Break ends the watches of a resource, and fails listing and watching it.
func (f *FakeAPI) Break(resource string) error {
	return f.update([]string{resource}, func(r *fakeResource) { r.broken = true })
}

// Resume ends [FakeAPI.Break]. The resource has to be listed again, for what
// happened in between cannot be watched.
func (f *FakeAPI) Resume(resource string) error {
	return f.update([]string{resource}, func(r *fakeResource) {
		r.broken, r.lost = false, len(r.log)
	})
}

// Pending names a resource of which not all events are in the table of who watches
// it, and is empty if there is none.
func (f *FakeAPI) Pending() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.resources {
		if r.watches > 0 && r.committed < len(r.log) {
			return r.kind.Source()
		}
	}
	return ""
}
