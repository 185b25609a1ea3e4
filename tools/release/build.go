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

// images writes an OCI layout for each program, an index with an image for every architecture, and the bill of
// materials of each image.
func images(ctx context.Context, l *linker, o *options, names []string) error {
	revision, err := git(ctx, l.root, "rev-parse", "HEAD")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	indexes := map[string]v1.ImageIndex{}
	for arch := range strings.SplitSeq(o.arch, ",") {
		debs, err := packages(ctx, arch)
		if err != nil {
			return err
		}
		base, err := layer(func(dir string) error { return unpack(ctx, dir, debs) })
		if err != nil {
			return err
		}
		if err := l.link(ctx, arch, names); err != nil {
			return err
		}
		for _, name := range names {
			sbom, err := billOfMaterials(l, name, arch, debs)
			if err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(o.out, name+"-"+arch+".spdx.json"), sbom, 0o644); err != nil {
				return err
			}
			img, err := image(l, name, arch, revision, base)
			if err != nil {
				return fmt.Errorf("%s for %s: %w", name, arch, err)
			}
			if indexes[name] == nil {
				indexes[name] = mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
			}
			indexes[name] = mutate.AppendManifests(indexes[name], mutate.IndexAddendum{
				Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}},
			})
		}
	}
	for _, name := range names {
		dir := filepath.Join(o.out, name)
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
		path, err := layout.Write(dir, empty.Index)
		if err != nil {
			return err
		}
		err = path.AppendIndex(indexes[name], layout.WithAnnotations(map[string]string{
			"org.opencontainers.image.ref.name": l.version, "io.containerd.image.name": o.registry + "/" + name + ":" + l.version,
		}))
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		fmt.Printf("%s:%s %s\n", name, l.version, o.arch)
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

// image puts a program, and the second one of its image, on the base layer.
func image(l *linker, name, arch, revision string, base v1.Layer) (v1.Image, error) {
	top, err := layer(func(dir string) error {
		for _, program := range withHook([]string{name}) {
			if err := place(l.program(arch, program), filepath.Join(dir, "usr/local/bin", program)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	created := v1.Time{Time: epoch}
	img, err = mutate.Append(img,
		mutate.Addendum{Layer: base, History: v1.History{CreatedBy: "libc6 and ca-certificates of Debian", Created: created}},
		mutate.Addendum{Layer: top, History: v1.History{CreatedBy: name, Created: created}})
	if err != nil {
		return nil, err
	}
	c, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	c = c.DeepCopy()
	c.OS, c.Architecture, c.Created = "linux", arch, created
	c.Config = v1.Config{
		User: "65532:65532", Entrypoint: []string{"/usr/local/bin/" + name}, WorkingDir: "/",
		Env: []string{"PATH=/usr/local/bin:/usr/bin", "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt"},
		Labels: map[string]string{
			"org.opencontainers.image.title": name, "org.opencontainers.image.version": l.version,
			"org.opencontainers.image.revision": revision, "org.opencontainers.image.licenses": "Apache-2.0",
			"org.opencontainers.image.source": "https://github.com/heddle-dev/heddle",
		},
	}
	return mutate.ConfigFile(img, c)
}
