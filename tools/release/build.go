package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// builder builds the layouts of one version.
type builder struct {
	*linker
	out, registry string
	arches        []string
	revision      string
	pins          []pin
	newest        bool // replaces packages of the base that the mirror no longer has
	bases         map[string]v1.Layer
}

func (b *builder) run(ctx context.Context, names []string) (err error) {
	b.bases = map[string]v1.Layer{}
	if b.revision, err = git(ctx, b.root, "rev-parse", "HEAD"); err != nil {
		return err
	}
	pins, err := readLock(filepath.Join(b.root, lockFile))
	if err != nil {
		return err
	}
	for _, arch := range b.arches {
		of, err := fetch(ctx, arch, pins, b.newest)
		if err != nil {
			return err
		}
		b.pins = append(b.pins, of...)
		if err := b.link(ctx, arch, names); err != nil {
			return err
		}
	}
	for _, name := range names {
		digest, err := b.image(ctx, name)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		fmt.Printf("%s:%s %s %s\n", name, b.version, digest, strings.Join(b.arches, ","))
	}
	return nil
}

func git(ctx context.Context, root string, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, "git", append([]string{"-C", root}, args...)...).Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w", args[0], err)
	}
	return strings.TrimSpace(string(out)), nil
}

// image writes the layout of one program, an index with an image for every architecture, and the
// bill of materials of each.
func (b *builder) image(ctx context.Context, name string) (v1.Hash, error) {
	dir := filepath.Join(b.out, name)
	if err := os.RemoveAll(dir); err != nil {
		return v1.Hash{}, err
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, arch := range b.arches {
		img, sbom, err := b.one(ctx, name, arch)
		if err != nil {
			return v1.Hash{}, fmt.Errorf("%s: %w", arch, err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}},
		})
		if err := os.MkdirAll(b.out, 0o755); err != nil {
			return v1.Hash{}, err
		}
		if err := os.WriteFile(filepath.Join(b.out, name+"-"+arch+".spdx.json"), sbom, 0o644); err != nil {
			return v1.Hash{}, err
		}
	}
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return v1.Hash{}, err
	}
	err = path.AppendIndex(index, layout.WithAnnotations(map[string]string{
		"org.opencontainers.image.ref.name": b.version, "io.containerd.image.name": b.registry + "/" + name + ":" + b.version,
	}))
	if err != nil {
		return v1.Hash{}, err
	}
	return index.Digest()
}

func (b *builder) one(ctx context.Context, name, arch string) (v1.Image, []byte, error) {
	dir, err := os.MkdirTemp(b.dir, "image-*")
	if err != nil {
		return nil, nil, err
	}
	defer os.RemoveAll(dir)
	var files []string
	for _, program := range withHook([]string{name}) {
		file := filepath.Join(dir, "usr/local/bin", program)
		if err := place(b.program(arch, program), file); err != nil {
			return nil, nil, err
		}
		files = append(files, file)
	}
	sbom, err := billOfMaterials(name, b.version, arch, files, b.pins)
	if err != nil {
		return nil, nil, err
	}
	below, err := b.base(ctx, arch)
	if err != nil {
		return nil, nil, err
	}
	top, err := layerOf(dir)
	if err != nil {
		return nil, nil, err
	}
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	if img, err = mutate.AppendLayers(img, below, top); err != nil {
		return nil, nil, err
	}
	img, err = mutate.ConfigFile(img, b.config(img, name, arch))
	return img, sbom, err
}

func (b *builder) config(img v1.Image, name, arch string) *v1.ConfigFile {
	c, err := img.ConfigFile()
	if err != nil {
		c = &v1.ConfigFile{}
	}
	c.OS, c.Architecture, c.Created = "linux", arch, v1.Time{Time: epoch}
	c.Config = v1.Config{
		User: "65532:65532", Entrypoint: []string{"/usr/local/bin/" + name}, WorkingDir: "/",
		Env: []string{"PATH=/usr/local/bin:/usr/bin", "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt"},
		Labels: map[string]string{
			"org.opencontainers.image.title": name, "org.opencontainers.image.version": b.version,
			"org.opencontainers.image.revision": b.revision, "org.opencontainers.image.licenses": "Apache-2.0",
			"org.opencontainers.image.source": "https://github.com/heddle-dev/heddle",
		},
	}
	c.History = []v1.History{{CreatedBy: "libc6 and ca-certificates of Debian", Created: v1.Time{Time: epoch}}, {CreatedBy: name, Created: v1.Time{Time: epoch}}}
	return c
}

// base returns the layer below all programs of an architecture, built once.
func (b *builder) base(ctx context.Context, arch string) (v1.Layer, error) {
	if l := b.bases[arch]; l != nil {
		return l, nil
	}
	dir, err := os.MkdirTemp("", "heddle-base-*")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if err := base(ctx, arch, dir, b.pins); err != nil {
		return nil, err
	}
	l, err := layerOf(dir)
	if err != nil {
		return nil, err
	}
	b.bases[arch] = l
	return l, nil
}
