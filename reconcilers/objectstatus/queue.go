// SPDX-License-Identifier: Apache-2.0

package objectstatus

import (
	"k8s.io/client-go/util/workqueue"

	"github.com/sluice-net/sluice/tables"
)

// newQueue returns the queue of policies whose status waits to be written. Writes are rare, so
// namespaces take turns: many policies of one do not hold up those of others.
func newQueue() workqueue.TypedRateLimitingInterface[tables.PolicyID] {
	type id = tables.PolicyID
	queue := workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[id]{Queue: newTurns()})
	delaying := workqueue.NewTypedDelayingQueueWithConfig(
		workqueue.TypedDelayingQueueConfig[id]{Queue: queue})
	return workqueue.NewTypedRateLimitingQueueWithConfig(
		workqueue.NewTypedItemExponentialFailureRateLimiter[id](retryMin, retryMax),
		workqueue.TypedRateLimitingQueueConfig[id]{DelayingQueue: delaying})
}

// turns has policies by namespace, of which each gives one in turn. It implements
// [workqueue.Queue].
type turns struct {
	of    map[string][]tables.PolicyID
	order []string // of namespaces that have some
	n     int
}

func newTurns() *turns { return &turns{of: map[string][]tables.PolicyID{}} }

// Touch implements [workqueue.Queue].
func (*turns) Touch(tables.PolicyID) {}

// Push implements [workqueue.Queue].
func (t *turns) Push(id tables.PolicyID) {
	if len(t.of[id.Namespace]) == 0 {
		t.order = append(t.order, id.Namespace)
	}
	t.of[id.Namespace] = append(t.of[id.Namespace], id)
	t.n++
}

// Len implements [workqueue.Queue].
func (t *turns) Len() int { return t.n }

// Pop implements [workqueue.Queue].
func (t *turns) Pop() tables.PolicyID {
	namespace := t.order[0]
	t.order = t.order[1:]
	id := t.of[namespace][0]
	if rest := t.of[namespace][1:]; len(rest) > 0 {
		t.of[namespace] = rest
		t.order = append(t.order, namespace)
	} else {
		delete(t.of, namespace)
	}
	t.n--
	return id
}
