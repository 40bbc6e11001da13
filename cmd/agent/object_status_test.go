// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/script"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/record"

	"github.com/sluice-net/sluice/reconcilers/nodereport"
	statuswriter "github.com/sluice-net/sluice/reconcilers/objectstatus"
	"github.com/sluice-net/sluice/sources/kubernetes"
)

// fakeWriter is what the agent or the operator of a script writes to: what nodes tell becomes
// objects of its API server, and the status of policies is kept beside them.
type fakeWriter struct {
	dynamic.Interface
	api *kubernetes.FakeAPI

	mu     sync.Mutex
	status map[string]any // by resource, namespace and name
	events []string
}

// cell provides the writer to an agent, and has all be written soon.
func (w *fakeWriter) cell() cell.Cell {
	return cell.Provide(
		func() dynamic.Interface { return w },
		func() record.EventRecorder { return fakeRecorder{w: w} },
		func() *nodereport.Pace { return &nodereport.Pace{Settle: time.Millisecond, Least: time.Millisecond} },
	)
}

// operatorCell provides the writer to an operator, and has all be written soon.
func (w *fakeWriter) operatorCell() cell.Cell {
	return cell.Provide(
		func() dynamic.Interface { return w },
		func() record.EventRecorder { return fakeRecorder{w: w} },
		func() *statuswriter.Pace {
			return &statuswriter.Pace{Settle: time.Millisecond, Again: time.Millisecond, Alike: time.Millisecond}
		},
	)
}

// Resource implements [dynamic.Interface].
func (w *fakeWriter) Resource(r schema.GroupVersionResource) dynamic.NamespaceableResourceInterface {
	return fakeResource{w: w, resource: r.Resource}
}

type fakeResource struct {
	dynamic.NamespaceableResourceInterface
	w                   *fakeWriter
	resource, namespace string
}

// Namespace implements [dynamic.NamespaceableResourceInterface].
func (r fakeResource) Namespace(namespace string) dynamic.ResourceInterface {
	r.namespace = namespace
	return r
}

func (r fakeResource) key(name string) string {
	return strings.Join([]string{r.resource, r.namespace, name}, "/")
}

// Get implements [dynamic.ResourceInterface].
func (r fakeResource) Get(_ context.Context, name string, _ metav1.GetOptions, _ ...string) (*unstructured.Unstructured, error) {
	data := r.w.api.Get(r.resource, r.namespace, name)
	if data == nil {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: r.resource}, name)
	}
	var object unstructured.Unstructured
	if err := json.Unmarshal(data, &object.Object); err != nil {
		return nil, err
	}
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	object.Object["status"] = r.w.status[r.key(name)]
	return &object, nil
}

// Patch implements [dynamic.ResourceInterface]: of a status, or of all there is.
func (r fakeResource) Patch(_ context.Context, name string, _ types.PatchType, data []byte, _ metav1.PatchOptions, sub ...string) (*unstructured.Unstructured, error) {
	if len(sub) == 0 && r.resource != "configmaps" {
		return nil, r.w.api.Apply(data)
	}
	var patch map[string]any
	if err := json.Unmarshal(data, &patch); err != nil {
		return nil, err
	}
	switch r.resource {
	case "egressippools":
		return nil, r.applyField(name, "status", patch["status"])
	case "configmaps":
		return nil, r.applyField(name, "data", patch["data"])
	}
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	status, _ := r.w.status[r.key(name)].(map[string]any)
	status = maps.Clone(status)
	if status == nil {
		status = map[string]any{}
	}
	maps.Copy(status, patch["status"].(map[string]any))
	r.w.status[r.key(name)] = status
	return nil, nil
}

// Create implements [dynamic.ResourceInterface].
func (r fakeResource) Create(
	_ context.Context, object *unstructured.Unstructured, _ metav1.CreateOptions, _ ...string,
) (*unstructured.Unstructured, error) {
	if r.w.api.Get(r.resource, r.namespace, object.GetName()) != nil {
		return nil, apierrors.NewAlreadyExists(
			schema.GroupResource{Resource: r.resource}, object.GetName())
	}
	data, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	return object, r.w.api.Apply(data)
}

// applyField changes a field in the object itself, which the writer reads again.
func (r fakeResource) applyField(name, field string, value any) error {
	var object map[string]any
	if err := json.Unmarshal(r.w.api.Get(r.resource, r.namespace, name), &object); err != nil {
		return err
	}
	object[field] = value
	data, err := json.Marshal(object)
	if err != nil {
		return err
	}
	return r.w.api.Apply(data)
}

// fakeRecorder keeps Events.
type fakeRecorder struct {
	record.EventRecorder
	w *fakeWriter
}

// Event implements [record.EventRecorder].
func (r fakeRecorder) Event(object runtime.Object, kind, reason, message string) {
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	ref := object.(*corev1.ObjectReference)
	r.w.events = append(r.w.events, fmt.Sprintf("%s %s %s: %s %s", kind, ref.Kind, ref.Name, reason, message))
}

// Eventf implements [record.EventRecorder].
func (r fakeRecorder) Eventf(
	object runtime.Object, kind, reason, format string, args ...any,
) {
	r.Event(object, kind, reason, fmt.Sprintf(format, args...))
}

func (w *fakeWriter) eventsCommand() script.Cmd {
	return script.Command(script.CmdUsage{Summary: "Print the Events so far"}, func(*script.State, ...string) (script.WaitFunc, error) {
		return func(*script.State) (string, string, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			return strings.Join(append(w.events, ""), "\n"), "", nil
		}, nil
	})
}

// objectCommand prints an object of the whole cluster, as it is in the API server.
func (w *fakeWriter) objectCommand() script.Cmd {
	return script.Command(script.CmdUsage{Summary: "Print an object", Args: "resource name"},
		func(_ *script.State, args ...string) (script.WaitFunc, error) {
			if len(args) != 2 {
				return nil, script.ErrUsage
			}
			return func(*script.State) (string, string, error) {
				return string(w.api.Get(args[0], "", args[1])), "", nil
			}, nil
		})
}

func (w *fakeWriter) statusCommand() script.Cmd {
	return script.Command(script.CmdUsage{Summary: "Print the conditions of an object", Args: "resource namespace/name"},
		func(_ *script.State, args ...string) (script.WaitFunc, error) {
			if len(args) != 2 {
				return nil, script.ErrUsage
			}
			return func(*script.State) (text, _ string, _ error) {
				w.mu.Lock()
				defer w.mu.Unlock()
				status, _ := w.status[args[0]+"/"+args[1]].(map[string]any)
				conditions, _ := status["conditions"].([]any)
				for _, c := range conditions {
					c := c.(map[string]any)
					text += fmt.Sprintf("%v %v %v\n", c["type"], c["status"], c["message"])
				}
				return text, "", nil
			}, nil
		})
}
