#!/bin/sh
# keep_objects.sh FOLDER COMPILER ...: run the compiler, unless FOLDER has its object from before.
# Every library that a test builds has the same runtime, which takes 2 s to compile. Nothing is
# optimized, which halves that, unless warnings are errors: some need what the optimizer finds out.
folder=$1
shift
case " $* " in
*" -Werror "*) ;;
*) set -- "$@" -O0 ;;
esac

source=
target=
previous=
for argument; do
    case $previous in
    -c) source=$argument ;;
    -o) target=$argument ;;
    esac
    previous=$argument
done
if [ -z "$source" ] || [ -z "$target" ]; then
    exec "$@"
fi

# All that the object depends on: the compiler, its options, and the source with its headers.
# Reading whole folders of headers is quicker than preprocessing, which only a dependency file needs.
headers=$(dirname "$source")
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
    key=$(find $headers -name '*.h' -o -name '*.hpp' -o -name '*.inc' | LC_ALL=C sort |
        { echo "$told" && xargs cat "$source"; } | sha256sum | cut -c-32)
else
    "$@" -E 2>/dev/null || exec "$@"
    key=$( (echo "$told" && cat "$target") | sha256sum | cut -c-32)
fi
kept=$folder/$key.o
if [ -e "$kept" ]; then
    cp "$kept" "$target"
    exit
fi
said=$("$@" 2>&1)
status=$?
# What the compiler says must be said each time, so such an object is not kept.
if [ $status != 0 ] || [ -n "$said" ]; then
    echo "$said" >&2
    exit $status
fi
mkdir -p "$folder"
cp "$target" "$kept.$$" && mv "$kept.$$" "$kept"
