package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// stored is an index of a layout and its tag.
type stored struct {
	name, tag string
	index     v1.ImageIndex
}

// layouts returns the images below a directory.
func layouts(from string) ([]stored, error) {
	dirs, err := filepath.Glob(filepath.Join(from, "*", "oci-layout"))
	if err != nil {
		return nil, err
	}
	var all []stored
	for _, file := range dirs {
		dir := filepath.Dir(file)
		top, err := layout.ImageIndexFromPath(dir)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", dir, err)
		}
		m, err := top.IndexManifest()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", dir, err)
		}
		for _, d := range m.Manifests {
			index, err := top.ImageIndex(d.Digest)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", dir, err)
			}
			all = append(all, stored{filepath.Base(dir), d.Annotations["org.opencontainers.image.ref.name"], index})
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("no images in %s: make images", from)
	}
	return all, nil
}

// push writes all images to a registry, with the credentials of docker's or podman's
// configuration. Existing layers are not sent again.
func push(ctx context.Context, from, registry string, insecure bool) error {
	images, err := layouts(from)
	if err != nil {
		return err
	}
	var options []name.Option
	if insecure {
		options = append(options, name.Insecure)
	}
	var errs []error
	for _, i := range images {
		ref, err := name.NewTag(registry+"/"+i.name+":"+i.tag, options...)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if err := remote.WriteIndex(ref, i.index, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)); err != nil {
			errs = append(errs, fmt.Errorf("push %s: %w", ref, err))
			continue
		}
		fmt.Fprintln(os.Stdout, ref)
	}
	return errors.Join(errs...)
}
