// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"
)

// imagesDir has the images that nodes import.
const imagesDir = "images"

// Images that every cluster has.
const (
	pauseImage   = "registry.k8s.io/pause:3.10"
	AgnhostImage = "registry.k8s.io/e2e-test-images/agnhost:2.63.0"
	// TrafficImage is cmd/cluster/traffic/pod.
	TrafficImage = "registry.example/traffic:1"
)

// Image is an image with a single layer.
type Image struct {
	Names      []string
	Files      map[string]string // path in the image: path of the machine
	Links      map[string]string // path in the image: what it is a symbolic link to
	Entrypoint []string
	Env        []string
	Cmd        []string
}

// baseFiles are those that every base image of static binaries has.
var baseFiles = map[string]string{
	"etc/passwd": "root:x:0:0:root:/root:/sbin/nologin\n",
	"etc/group":  "root:x:0:\n",
}

// SearchPath is PATH in an image, unless that says otherwise.
const SearchPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// writeImages writes the images of every cluster and those of the options.
func (c *Cluster) writeImages(context.Context) error {
	images := append([]Image{
		{
			Names: []string{AgnhostImage}, Files: map[string]string{"agnhost": c.binary("agnhost")},
			Entrypoint: []string{"/agnhost"}, Cmd: []string{"pause"}, Env: []string{SearchPath},
		},
		{
			Names: []string{pauseImage}, Files: map[string]string{"pod": c.binary("pod")},
			Entrypoint: []string{"/pod", "pause"}, Env: []string{SearchPath},
		},
		{
			Names: []string{TrafficImage}, Files: map[string]string{"pod": c.binary("pod")},
			Entrypoint: []string{"/pod"}, Env: []string{SearchPath},
		},
	}, c.options.Images...)
	if err := os.MkdirAll(c.path(imagesDir), 0o755); err != nil {
		return err
	}
	for _, image := range images {
		if err := image.write(c.imagePath(image)); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) imagePath(image Image) string {
	name := strings.NewReplacer("/", "-", ":", "-").Replace(image.Names[0])
	return c.path(imagesDir, name+".tar")
}

// Import gives an image to all nodes while they run. It replaces one of the
// same name, for pods that start later.
func (c *Cluster) Import(ctx context.Context, image Image) error {
	file := c.imagePath(image)
	if err := image.write(file); err != nil {
		return err
	}
	for _, node := range c.Nodes {
		if _, err := node.Run(ctx, importCommand(file)...); err != nil {
			return fmt.Errorf("import %s on %s: %w", image.Names[0], node.Name, err)
		}
	}
	return nil
}

// importCommand is what imports an image, on a node.
func importCommand(file string) []string {
	return []string{"ctr", "--address=" + containerdSocket, "--namespace=k8s.io", "images", "import",
		file}
}

func (c *Cluster) binary(name string) string { return filepath.Join(c.options.Bin, name) }

// write writes a docker archive, which containerd can import.
func (i *Image) write(file string) error {
	layer, err := i.layer()
	if err != nil {
		return err
	}
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH,
		"os":           "linux",
		"config":       map[string]any{"Entrypoint": i.Entrypoint, "Cmd": i.Cmd, "Env": i.Env},
		"rootfs":       map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + digest(layer)}},
		"history":      []map[string]string{{"created_by": "cmd/cluster"}},
	})
	if err != nil {
		return err
	}
	configName, layerName := digest(config)+".json", digest(layer)+"/layer.tar"
	manifest, err := json.Marshal([]map[string]any{
		{"Config": configName, "RepoTags": i.Names, "Layers": []string{layerName}},
	})
	if err != nil {
		return err
	}
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	defer out.Close()
	archive := tar.NewWriter(out)
	for _, member := range []struct {
		name string
		data []byte
	}{{configName, config}, {layerName, layer}, {"manifest.json", manifest}} {
		if err := writeText(archive, member.name, member.data); err != nil {
			return err
		}
	}
	return archive.Close()
}

// layer returns the file system of the image as an archive.
func (i *Image) layer() ([]byte, error) {
	var buffer bytes.Buffer
	archive := tar.NewWriter(&buffer)
	for dir, mode := range map[string]int64{"etc/": 0o755, "root/": 0o700, "tmp/": 0o1777} {
		header := tar.Header{Typeflag: tar.TypeDir, Name: dir, Mode: mode}
		if err := archive.WriteHeader(&header); err != nil {
			return nil, err
		}
	}
	for name, text := range baseFiles {
		if err := writeText(archive, name, []byte(text)); err != nil {
			return nil, err
		}
	}
	for name, source := range i.Files {
		if err := copyMember(archive, path.Clean(name), source); err != nil {
			return nil, err
		}
	}
	for name, target := range i.Links {
		link := &tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777}
		if err := archive.WriteHeader(link); err != nil {
			return nil, err
		}
	}
	return buffer.Bytes(), archive.Close()
}

func writeText(archive *tar.Writer, name string, text []byte) error {
	header := tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(text))}
	if err := archive.WriteHeader(&header); err != nil {
		return err
	}
	_, err := archive.Write(text)
	return err
}

func copyMember(archive *tar.Writer, name, source string) error {
	file, err := os.Open(source)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	header := tar.Header{
		Typeflag: tar.TypeReg, Name: name, Mode: int64(info.Mode().Perm()), Size: info.Size(),
	}
	if err := archive.WriteHeader(&header); err != nil {
		return err
	}
	_, err = io.Copy(archive, file)
	return err
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
