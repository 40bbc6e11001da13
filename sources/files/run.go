// SPDX-License-Identifier: Apache-2.0

package files

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/fsnotify/fsnotify"
)

const (
	// settleTime is how long nothing must have changed before files are read:
	// editors and copies do not write them at once. settleMax bounds the wait.
	settleTime = 20 * time.Millisecond
	settleMax  = 500 * time.Millisecond

	// resyncTime is how often files are read though nothing was noticed, and
	// retryTime how often a directory that cannot be read is tried.
	resyncTime = 30 * time.Second
	retryTime  = time.Second
)

// run reads the files, and again when they change, until the context ends.
func (s *source) run(ctx context.Context, health cell.Health) error {
	if s.dir == "" {
		if _, err := s.pass(nil, health); err != nil {
			return err
		}
		<-ctx.Done()
		return nil
	}
	w, err := newDirWatcher(s.dir)
	if err != nil {
		return err
	}
	defer w.Close()
	for {
		next, err := s.pass(w, health)
		if err != nil {
			return err
		}
		if !w.wait(ctx, next) {
			return nil
		}
	}
}

// pass reads the files once, and returns after what time to do so again.
func (s *source) pass(w *dirWatcher, health cell.Health) (time.Duration, error) {
	t, err := s.read(w)
	if err != nil {
		health.Degraded("Cannot read manifests, the former objects stay", err)
		return retryTime, s.unreadable(err)
	}
	broken, err := s.apply(t)
	if err != nil {
		return 0, fmt.Errorf("apply manifests: %w", err)
	}
	if broken != nil {
		health.Degraded("Broken manifests, their former objects stay", broken)
	} else {
		health.OK(fmt.Sprintf("%d files, %d objects", len(s.files), len(s.stored)))
	}
	return resyncTime, nil
}

// read returns the files, once every directory that they are in is watched:
// what happens to them after that is noticed.
func (s *source) read(w *dirWatcher) (*tree, error) {
	for {
		t, err := readTree(s.fsys)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", s.dir, err)
		}
		if w == nil {
			return t, nil
		}
		fresh, err := w.add(t.dirs)
		if err != nil || !fresh {
			return t, err
		}
	}
}

// dirWatcher notices changes in directories.
type dirWatcher struct {
	*fsnotify.Watcher
	root    string
	watched map[string]fs.FileInfo
}

func newDirWatcher(root string) (*dirWatcher, error) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", root, err)
	}
	return &dirWatcher{Watcher: w, root: root, watched: map[string]fs.FileInfo{}}, nil
}

// add watches these directories, and reports whether one was not watched before.
// A directory that another one took the place of counts as new.
func (w *dirWatcher) add(dirs map[string]fs.FileInfo) (fresh bool, err error) {
	for name := range w.watched {
		if info, found := dirs[name]; !found || !os.SameFile(info, w.watched[name]) {
			_ = w.Remove(filepath.Join(w.root, name)) // it may be gone
			delete(w.watched, name)
		}
	}
	for name, info := range dirs {
		if _, found := w.watched[name]; found {
			continue
		}
		if err := w.Add(filepath.Join(w.root, name)); err != nil {
			return false, fmt.Errorf("watch %s: %w", name, err)
		}
		w.watched[name] = info
		fresh = true
	}
	return fresh, nil
}

// wait returns when something changed and settled, or the time is over. It
// returns false when the context ends.
func (w *dirWatcher) wait(ctx context.Context, next time.Duration) bool {
	var (
		timer   = time.NewTimer(next)
		changed time.Time
	)
	defer timer.Stop()
	notice := func() {
		if changed.IsZero() {
			changed = time.Now()
		}
		timer.Reset(min(settleTime, max(0, settleMax-time.Since(changed))))
	}
	for {
		select {
		case <-ctx.Done():
			return false
		case <-timer.C:
			return true
		case <-w.Events:
			notice()
		case <-w.Errors: // such as too many events: something was missed
			notice()
		}
	}
}
