# cmake -DINPUT=file -DOUTPUT=file.cpp -DSYMBOL=name -P embed_file.cmake: a source with the file as an array of bytes,
# aligned as the driver likes fat binaries.
file(READ ${INPUT} bytes HEX)
string(LENGTH "${bytes}" digits)
math(EXPR size "${digits} / 2")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
file(WRITE ${OUTPUT} "#include <cstddef>
extern const unsigned char ${SYMBOL}[];
extern const std::size_t ${SYMBOL}_bytes;
alignas(16) const unsigned char ${SYMBOL}[] = {${bytes}};
const std::size_t ${SYMBOL}_bytes = ${size};
")
