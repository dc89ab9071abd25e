#!/bin/sh
# keep_objects.sh FOLDER COMPILER ...: run the compiler, unless FOLDER has its output from before.
# Every library that a test builds has the same runtime, which takes 2 s to compile, and every
# served folder the same extension. Nothing is optimized, which halves that, unless warnings are
# errors: some need what the optimizer finds out.
folder=$1
shift
case " $* " in
*" -Werror "*) ;;
*) set -- "$@" -O0 ;;
esac

inputs=
target=
previous=
for argument; do
    case $previous:$argument in
    -o:*) target=$argument ;;
    :*) ;; # the compiler
    # Files that a linker finds by itself are not known here.
    *:-L* | *:-Wl,*/* | *:@*) inputs= && break ;;
    *:-*) ;;
    *:*" "*) inputs= && break ;;
    *) [ ! -f "$argument" ] || inputs="$inputs $argument" ;;
    esac
    previous=$argument
done
if [ -z "$inputs" ] || [ -z "$target" ]; then
    exec "$@"
fi

# All that the output depends on: the compiler, its options, and the inputs with their headers.
# Reading whole folders of headers is quicker than preprocessing, which only a dependency file needs.
headers=
for input in $inputs; do
    headers="$headers $(dirname "$input")"
done
previous=
for argument; do
    case $previous$argument in
    *torch/include | -I/usr/* | -isystem/usr/*) ;;
    -I/* | -I[a-z.]* | -isystem?*) headers="$headers ${argument#-I}" ;;
    -M* | -include*) headers= && break ;;
    esac
    previous=
    case $argument in
    -I | -isystem) previous=$argument ;;
    esac
done
told=$(echo "$* " | sed "s| -o $target | |")
if [ -n "$headers" ]; then
    # shellcheck disable=SC2086  # several folders
    key=$(find $headers -regex '.*\.\(h\|hpp\|inc\)' -print0 | LC_ALL=C sort -z |
        { echo "$told" && xargs -0 cat $inputs; } | sha256sum | cut -c-32)
else
    "$@" -E 2>/dev/null || exec "$@"
    key=$( (echo "$told" && cat "$target") | sha256sum | cut -c-32)
fi
kept=$folder/$key
if [ -e "$kept" ]; then
    # As linkers do: a process may have the old one loaded.
    [ ! -f "$target" ] || rm "$target"
    cp "$kept" "$target"
    exit
fi
said=$("$@" 2>&1)
status=$?
# What the compiler says must be said each time, so such an output is not kept.
if [ $status != 0 ] || [ -n "$said" ]; then
    echo "$said" >&2
    exit $status
fi
mkdir -p "$folder"
cp "$target" "$kept.$$" && mv "$kept.$$" "$kept"
