// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/cilium/hive/cell"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"github.com/sluice-net/sluice/cmd/version"
	"github.com/sluice-net/sluice/reconcilers/nodereport"
	"github.com/sluice-net/sluice/sources/kubernetes"
	policyreports "github.com/sluice-net/sluice/tables/nodereport"
)

// Reporting has the modules that report the status of policies to the operator. They need
// somewhere to write to.
var Reporting = cell.Group(
	// What this node tells: node-report.
	policyreports.Cell,

	// To the NodeReport of this node.
	cell.Provide(
		func() nodereport.Version { return nodereport.Version(version.Get().Version) },
	),
	nodereport.Cell,
)

// apiWritersCell provides what writes to the API server; nothing does if the agent
// reports to no server. It is in the operator too.
var apiWritersCell = cell.Module(
	"api-writers",
	"Connections to write to the API server",

	cell.Provide(newDynamicClient, newEventRecorder),
)

func newDynamicClient(c *kubernetes.Connection) (dynamic.Interface, error) {
	if c == nil {
		return nil, nil
	}
	client, err := dynamic.NewForConfig(c.Config)
	if err != nil {
		return nil, fmt.Errorf("create client for objects: %w", err)
	}
	return client, nil
}

// newEventRecorder returns a recorder whose Events have no host: whichever process
// writes them, they are of one series.
func newEventRecorder(
	c *kubernetes.Connection, lc cell.Lifecycle, log *slog.Logger,
) (record.EventRecorder, error) {
	if c == nil {
		return nil, nil
	}
	client, err := typedcorev1.NewForConfig(c.Config)
	if err != nil {
		return nil, fmt.Errorf("create client for Events: %w", err)
	}
	ctx, cancel := context.WithCancel(
		klog.NewContext(context.Background(), kubernetes.LibraryLogger(log)),
	)
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	lc.Append(cell.Hook{
		OnStart: func(cell.HookContext) error {
			broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.Events("")})
			return nil
		},
		OnStop: func(cell.HookContext) error {
			cancel()
			broadcaster.Shutdown()
			return nil
		},
	})
	return broadcaster.NewRecorder(runtime.NewScheme(), corev1.EventSource{Component: "sluice"}), nil
}
