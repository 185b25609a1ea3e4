// Package image packs container images without a container engine.
//
// It owns the docker-archive format: one layer, one config, one manifest.
package image

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// Spec describes what an image holds.
type Spec struct {
	// Name is the full reference, such as localhost/probe:1. A tag other than
	// latest lets the kubelet use the image without asking a registry.
	Name string
	// Files maps a path in the image to a file of this machine. Modes are kept.
	// A dynamically linked program brings its loader and its libraries along.
	Files map[string]string
	// Data maps a path in the image to its content; its mode is 0644.
	Data map[string][]byte
	// Links maps the path of a symbolic link in the image to its target. That of /etc is
	// relative, such as usr/etc: containerd follows no other when it looks for users.
	Links      map[string]string
	Entrypoint []string
	Cmd        []string
	Env        []string // KEY=value
	User       string
}

// entry is one file of the layer.
type entry struct {
	dst  string
	src  string // empty when link or data is the content
	link string
	data []byte
}

// Pack writes the image as a docker-archive to the file at out. What it writes
// depends only on the content of the files: times and owners are fixed.
func Pack(ctx context.Context, out string, spec Spec) error {
	if spec.Name == "" {
		return fmt.Errorf("pack image %s: no name", out)
	}
	entries := plan(ctx, spec)
	layer, err := os.CreateTemp(filepath.Dir(out), ".layer-*")
	if err != nil {
		return fmt.Errorf("create layer: %w", err)
	}
	defer func() {
		_ = layer.Close()
		_ = os.Remove(layer.Name())
	}()
	sum := sha256.New()
	if err := writeLayer(io.MultiWriter(layer, sum), entries); err != nil {
		return fmt.Errorf("write layer of %s: %w", spec.Name, err)
	}
	if err := writeArchive(out, spec, layer, hex.EncodeToString(sum.Sum(nil))); err != nil {
		return fmt.Errorf("write image %s: %w", spec.Name, err)
	}
	return nil
}

// plan lists the files of the layer, sorted.
func plan(ctx context.Context, spec Spec) []entry {
	etc := "/etc"
	if target, linked := spec.Links[etc]; linked {
		etc = path.Join("/", target) // A directory in the layer would take the link's place.
	}
	byPath := map[string]entry{
		etc + "/passwd": {data: []byte("root:x:0:0:root:/:/sbin/nologin\nnobody:x:65534:65534:nobody:/:/sbin/nologin\n")},
		etc + "/group":  {data: []byte("root:x:0:\nnobody:x:65534:\n")},
	}
	for dst, src := range spec.Files {
		for _, library := range libraries(ctx, src) {
			byPath[library] = entry{src: library}
		}
		byPath[path.Join("/", dst)] = entry{src: src}
	}
	for dst, data := range spec.Data {
		byPath[path.Join("/", dst)] = entry{data: data}
	}
	for dst, target := range spec.Links {
		byPath[path.Join("/", dst)] = entry{link: target}
	}
	entries := make([]entry, 0, len(byPath))
	for _, dst := range slices.Sorted(maps.Keys(byPath)) {
		e := byPath[dst]
		e.dst = dst
		entries = append(entries, e)
	}
	return entries
}

// libraries are the loader and the shared libraries of a program, by ldd, which fails for what is static or
// no program. The loader of the image finds them in the same directories.
func libraries(ctx context.Context, file string) (paths []string) {
	out, _ := exec.CommandContext(ctx, "ldd", file).Output()
	for line := range strings.Lines(string(out)) {
		for word := range strings.FieldsSeq(line) {
			if path.IsAbs(word) {
				paths = append(paths, path.Clean(word))
				break
			}
		}
	}
	return paths
}

// writeLayer writes the files and every directory above them.
func writeLayer(w io.Writer, entries []entry) error {
	tw := tar.NewWriter(w)
	made := map[string]bool{"/": true}
	if err := writeDir(tw, made, "/tmp", 0o1777); err != nil {
		return err
	}
	for _, e := range entries {
		if err := writeDir(tw, made, path.Dir(e.dst), 0o755); err != nil {
			return err
		}
		if err := writeFile(tw, e); err != nil {
			return err
		}
	}
	return tw.Close()
}

func writeDir(tw *tar.Writer, made map[string]bool, dir string, mode int64) error {
	if made[dir] {
		return nil
	}
	if err := writeDir(tw, made, path.Dir(dir), 0o755); err != nil {
		return err
	}
	made[dir] = true
	return tw.WriteHeader(&tar.Header{
		Typeflag: tar.TypeDir, Name: strings.TrimPrefix(dir, "/") + "/", Mode: mode, ModTime: epoch(),
	})
}

func writeFile(tw *tar.Writer, e entry) error {
	name := strings.TrimPrefix(e.dst, "/")
	if e.link != "" {
		return tw.WriteHeader(&tar.Header{
			Typeflag: tar.TypeSymlink, Name: name, Linkname: e.link, Mode: 0o777, ModTime: epoch(),
		})
	}
	if e.src == "" {
		return writeBytes(tw, name, e.data)
	}
	f, err := os.Open(e.src)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is not a regular file", e.src)
	}
	header := &tar.Header{
		Typeflag: tar.TypeReg, Name: name, Mode: int64(info.Mode().Perm()), Size: info.Size(), ModTime: epoch(),
	}
	if err := tw.WriteHeader(header); err != nil {
		return err
	}
	_, err = io.Copy(tw, f)
	return err
}

func writeBytes(tw *tar.Writer, name string, data []byte) error {
	header := &tar.Header{
		Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(data)), ModTime: epoch(),
	}
	if err := tw.WriteHeader(header); err != nil {
		return err
	}
	_, err := tw.Write(data)
	return err
}

// writeArchive writes config, layer and manifest, first to a temporary file: a
// reader never sees half an image.
func writeArchive(out string, spec Spec, layer *os.File, diffID string) error {
	config, err := imageConfig(spec, diffID)
	if err != nil {
		return err
	}
	configSum := sha256.Sum256(config)
	configName := hex.EncodeToString(configSum[:]) + ".json"
	layerName := diffID + "/layer.tar"
	manifest, err := json.Marshal([]manifestItem{{
		Config: configName, RepoTags: []string{spec.Name}, Layers: []string{layerName},
	}})
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(out), ".image-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }()
	tw := tar.NewWriter(f)
	err = firstError(
		func() error { return writeBytes(tw, configName, config) },
		func() error { return writeFile(tw, entry{dst: "/" + layerName, src: layer.Name()}) },
		func() error { return writeBytes(tw, "manifest.json", manifest) },
		tw.Close,
		f.Close,
	)
	if err != nil {
		_ = f.Close()
		return err
	}
	return os.Rename(f.Name(), out)
}

func firstError(steps ...func() error) error {
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func epoch() time.Time { return time.Unix(0, 0).UTC() }

// manifestItem is one element of manifest.json in a docker-archive.
type manifestItem struct {
	Config   string   `json:"Config"`
	RepoTags []string `json:"RepoTags"`
	Layers   []string `json:"Layers"`
}

// Name is the reference of the one image in a docker-archive.
func Name(archive io.Reader) (string, error) {
	files := tar.NewReader(archive)
	for {
		header, err := files.Next()
		if err != nil {
			return "", fmt.Errorf("manifest.json of an image: %w", err)
		}
		if header.Name != "manifest.json" {
			continue
		}
		var items []manifestItem
		if err := json.NewDecoder(files).Decode(&items); err != nil {
			return "", fmt.Errorf("manifest.json of an image: %w", err)
		}
		if len(items) != 1 || len(items[0].RepoTags) != 1 {
			return "", fmt.Errorf("manifest.json of an image: want one image with one name, have %+v", items)
		}
		return items[0].RepoTags[0], nil
	}
}

// imageConfig is the OCI image configuration.
func imageConfig(spec Spec, diffID string) ([]byte, error) {
	type runConfig struct {
		User       string   `json:"User,omitempty"`
		Env        []string `json:"Env"`
		Entrypoint []string `json:"Entrypoint,omitempty"`
		Cmd        []string `json:"Cmd,omitempty"`
		WorkingDir string   `json:"WorkingDir"`
	}
	type rootfs struct {
		Type    string   `json:"type"`
		DiffIDs []string `json:"diff_ids"`
	}
	return json.Marshal(struct {
		Created      time.Time `json:"created"`
		Architecture string    `json:"architecture"`
		OS           string    `json:"os"`
		Config       runConfig `json:"config"`
		RootFS       rootfs    `json:"rootfs"`
	}{
		Created: epoch(), Architecture: runtime.GOARCH, OS: "linux",
		Config: runConfig{
			User:       spec.User,
			Env:        append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, spec.Env...),
			Entrypoint: spec.Entrypoint, Cmd: spec.Cmd, WorkingDir: "/",
		},
		RootFS: rootfs{Type: "layers", DiffIDs: []string{"sha256:" + diffID}},
	})
}
