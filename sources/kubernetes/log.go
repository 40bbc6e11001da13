// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"log/slog"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
)

// LibraryLogger returns a logger for client-go. What it has to say is for
// debugging, as [status] tells what happened.
func LibraryLogger(log *slog.Logger) klog.Logger {
	return logr.FromSlogHandler(quiet{log.Handler()})
}

// quiet lowers the level of records, so that information is debug output.
type quiet struct{ slog.Handler }

const lower = slog.LevelDebug - slog.LevelInfo

// Enabled implements [slog.Handler].
func (q quiet) Enabled(ctx context.Context, level slog.Level) bool {
	return q.Handler.Enabled(ctx, level+lower)
}

// Handle implements [slog.Handler].
func (q quiet) Handle(ctx context.Context, r slog.Record) error {
	r.Level += lower
	return q.Handler.Handle(ctx, r)
}

// WithAttrs implements [slog.Handler].
func (q quiet) WithAttrs(attrs []slog.Attr) slog.Handler { return quiet{q.Handler.WithAttrs(attrs)} }

// WithGroup implements [slog.Handler].
func (q quiet) WithGroup(name string) slog.Handler { return quiet{q.Handler.WithGroup(name)} }
