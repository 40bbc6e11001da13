// SPDX-License-Identifier: Apache-2.0

package taint

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/scheme"
	k8stesting "k8s.io/client-go/testing"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

type world struct {
	*remover
	t           *testing.T
	client      *fake.FakeDynamicClient
	nodes       statedb.RWTable[*tables.Node]
	slots       statedb.RWTable[*tables.Slot]
	attachments statedb.RWTable[*tables.Attachment]
	config      statedb.RWTable[*tables.ConfigMirror]
	policies    statedb.RWTable[*tables.NetworkPolicy]
	written     func(statedb.WriteTxn)
}

// nodeObject is a Node with a taint of others among Sluice's.
func nodeObject(name string) *corev1.Node {
	return &corev1.Node{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.NodeSpec{Taints: []corev1.Taint{
			{Key: Key, Effect: corev1.TaintEffectNoSchedule},
			{Key: "example.com/other", Value: "x", Effect: corev1.TaintEffectNoExecute},
			{Key: Key, Value: "true", Effect: corev1.TaintEffectNoExecute},
		}},
	}
}

func in(t *testing.T, test func(w *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t,
			client: fake.NewSimpleDynamicClient(scheme.Scheme, nodeObject("node-1"), nodeObject("node-2"))}
		db := statedb.New()
		var err error
		w.nodes, err = tables.NewNodeTable(db)
		require.NoError(t, err)
		w.slots, err = tables.NewSlotTable(db)
		require.NoError(t, err)
		w.attachments, err = tables.NewAttachmentTable(db)
		require.NoError(t, err)
		w.config, err = tables.NewConfigMirrorTable(db)
		require.NoError(t, err)
		w.policies, err = tables.NewNetworkPolicyTable(db)
		require.NoError(t, err)
		wtxn := db.WriteTxn(w.slots)
		w.written = w.slots.RegisterInitializer(wtxn, "test")
		wtxn.Commit()
		w.remover = &remover{params{
			Log: slog.New(slog.DiscardHandler), DB: db, Client: w.client, Nodes: w.nodes,
			LocalNode: tables.LocalNode{Name: "node-1"},
			Holding: tables.Holding{
				DB: db, Slots: w.slots, Attachments: w.attachments, ConfigEntries: w.config,
				Policies:    w.policies,
				Enforcement: tables.EnforcementDefault,
			},
		}}
		ctx, cancel := context.WithCancel(t.Context())
		_, health := cell.NewSimpleHealth()
		done := make(chan error, 1)
		go func() { done <- w.run(ctx, health) }()
		defer func() {
			cancel()
			require.NoError(t, <-done)
		}()
		test(w)
	})
}

func (w *world) of(node string) (taints []string) {
	synctest.Wait()
	object, err := w.client.Resource(nodes).Get(w.t.Context(), node, metav1.GetOptions{})
	require.NoError(w.t, err)
	var n corev1.Node
	require.NoError(w.t, runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &n))
	for _, t := range n.Spec.Taints {
		taints = append(taints, t.Key)
	}
	return taints
}

func (w *world) attach(program bpf.Program, ifIndex int, status reconciler.Status) {
	wtxn := w.DB.WriteTxn(w.attachments)
	_, _, err := w.attachments.Insert(wtxn,
		&tables.Attachment{IfIndex: ifIndex, Program: program, Reconciled: tables.Reconciled{Status: status}})
	require.NoError(w.t, err)
	wtxn.Commit()
}

func (w *world) configure(flags bpf.ConfigFlags) {
	wtxn := w.DB.WriteTxn(w.config)
	_, _, err := w.config.Insert(wtxn, &tables.ConfigMirror{Value: bpf.ConfigValue{Flags: flags}})
	require.NoError(w.t, err)
	wtxn.Commit()
}

func (w *world) ready() {
	w.configure(0)
	wtxn := w.DB.WriteTxn(w.slots)
	w.written(wtxn)
	wtxn.Commit()
	w.attach(bpf.ProgramBackstop, 0, reconciler.StatusDone())
}

var all = []string{Key, "example.com/other", Key}

// The taint goes when maps are written and programs attached, and no other one.
func TestRemoved(t *testing.T) {
	in(t, func(w *world) {
		require.Equal(t, all, w.of("node-1"))
		wtxn := w.DB.WriteTxn(w.slots)
		w.written(wtxn)
		wtxn.Commit()
		require.Equal(t, all, w.of("node-1"), "nothing is attached yet")
		w.attach(bpf.ProgramFromPod, 7, reconciler.StatusPending())
		w.attach(bpf.ProgramBackstop, 0, reconciler.StatusDone())
		require.Equal(t, all, w.of("node-1"))
		w.attach(bpf.ProgramFromPod, 7, reconciler.StatusError(errors.New("no header")))
		require.Equal(t, all, w.of("node-1"), "nothing is configured yet")
		w.configure(0)
		require.Equal(t, []string{"example.com/other"}, w.of("node-1"))
		require.Equal(t, all, w.of("node-2"))

		// Another Node comes to have the name.
		require.NoError(t, w.client.Resource(nodes).Delete(t.Context(), "node-1", metav1.DeleteOptions{}))
		object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(nodeObject("node-1"))
		require.NoError(t, err)
		_, err = w.client.Resource(nodes).Create(t.Context(), &unstructured.Unstructured{Object: object},
			metav1.CreateOptions{})
		require.NoError(t, err)
		ntxn := w.DB.WriteTxn(w.nodes)
		_, _, err = w.nodes.Insert(ntxn, &tables.Node{Name: "node-1"})
		require.NoError(t, err)
		ntxn.Commit()
		require.Equal(t, []string{"example.com/other"}, w.of("node-1"))
	})
}

// Where there are network policies, pods are to be held by them before the taint goes.
func TestRemovedWhenPodsAreHeld(t *testing.T) {
	in(t, func(w *world) {
		wtxn := w.DB.WriteTxn(w.policies)
		_, _, err := w.policies.Insert(wtxn, &tables.NetworkPolicy{})
		require.NoError(t, err)
		wtxn.Commit()
		w.ready()
		require.Equal(t, all, w.of("node-1"))
		w.configure(bpf.ConfigNetworkPolicies)
		require.Equal(t, []string{"example.com/other"}, w.of("node-1"))
	})
}

// What the API server refuses is tried again.
func TestTriedAgain(t *testing.T) {
	in(t, func(w *world) {
		failures := 0
		w.client.PrependReactor("patch", "nodes", func(k8stesting.Action) (bool, runtime.Object, error) {
			if failures++; failures <= 3 {
				return true, nil, errors.New("the taints have changed meanwhile")
			}
			return false, nil, nil
		})
		w.ready()
		require.Equal(t, all, w.of("node-1"))
		time.Sleep(time.Minute) // of the test's own time
		require.Equal(t, []string{"example.com/other"}, w.of("node-1"))
		require.Equal(t, 4, failures)
	})
}
